# The whole suite on the repaired wheel, where there is no compiler; and the wheel built again elsewhere: same bytes.
source "$ROOT/.ci/common.sh"

bash "$ROOT/.ci/reproduce.sh" long
wheel_tests wheel tests

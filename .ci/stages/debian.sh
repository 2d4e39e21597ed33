# Debian packages of debian-packages.txt: installed where this runs as root and one is missing.
source "$ROOT/.ci/common.sh"

missing=()
while read -r package; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
done <"$ROOT/.ci/debian-packages.txt"

if [ ${#missing[@]} -gt 0 ]; then
    echo "missing: ${missing[*]}"
    [ "$(id -u)" -eq 0 ] || {
        echo "install them: apt-get install ${missing[*]}"
        exit 1
    }
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install --yes --no-install-recommends "${missing[@]}"
fi

# The documentation as docs/README.md says, strictly; nothing from elsewhere, no name left out.
source "$ROOT/.ci/common.sh"

fresh_clone "$WORK/docs"
export NO_MKDOCS_2_WARNING=1
readme_command "$WORK/docs" \
    'python3 -m venv .venv-docs && .venv-docs/bin/pip install -r .ci/requirements-docs.txt' docs/README.md
readme_command "$WORK/docs" \
    '.venv-docs/bin/mkdocs build --strict --config-file docs/mkdocs.yml' docs/README.md
cd "$WORK/docs"
python3 .ci/check_site.py . docs/site
[ -z "$(git status --porcelain)" ] || {
    git status --short
    echo "the build leaves files that git does not ignore"
    exit 1
}

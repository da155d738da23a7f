#!/bin/sh
# Write .env from .env.example, with a random secret for each variable that has no value.
set -eu
cd "$(dirname "$0")/.."
umask 077
new=.env.$$
trap 'rm -f "$new"' EXIT
while IFS= read -r line; do
    case $line in
        [A-Z]*=) printf '%s%s\n' "$line" "$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')" ;;
        *) printf '%s\n' "$line" ;;
    esac
done < .env.example > "$new"
# Never overwrite .env, because services keep the secrets that they were started with.
ln "$new" .env || {
    echo "make-env: .env was not written: if it exists, delete an old one to make new secrets" >&2
    exit 1
}
echo ".env has new secrets; commands need its TUNEFARM_TOKEN"

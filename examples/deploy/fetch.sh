#!/bin/sh
# Fetches a model's fastest library, unless the one that is here is that already. Needs curl 7.70 or newer.
#
#   TUNEFARM_TOKEN=... ./fetch.sh http://tuner:8760 MODEL_SHA256 rpi5 model.tar
set -eu
[ $# -eq 4 ] || { echo "usage: fetch.sh URL MODEL_SHA256 TARGET FILE" >&2; exit 2; }
url=$1 model=$2 target=$3 file=$4

[ -e "$file" ] || rm -f "$file.etag"
status=$(curl --silent --show-error --fail-with-body --connect-timeout 5 --get "$url/v1/artifacts/best" \
    --data-urlencode "model=$model" --data-urlencode "target=$target" \
    ${TUNEFARM_TOKEN:+--header "Authorization: Bearer $TUNEFARM_TOKEN"} \
    --etag-compare "$file.etag" --etag-save "$file.etag" \
    --output "$file.new" --write-out '%{http_code}') || {
    cat "$file.new" >&2; rm -f "$file.new" "$file.etag"; exit 1
}
if [ "$status" = 304 ]; then
    rm -f "$file.new"
    echo "$file is the fastest still"
else
    mv "$file.new" "$file"
    echo "$file is new"
fi

#!/bin/sh
# Installs a tunefarm worker on this machine for the service that served this script. Read it first. It needs
# Python 3.11 or newer with venv, and changes only:
#
#   PREFIX: /opt/tunefarm, or ~/.local/share/tunefarm without root    a virtual environment, this script
#   /etc/tunefarm/worker.env, or ~/.config/tunefarm/worker.env without root    settings, with the token
#   /etc/systemd/system/tunefarm-worker.service    with --unit
#
# It downloads tunefarm from the service, and its dependencies as wheels from pip's package index. It reads
# the token from TUNEFARM_WORKER_TOKEN, or asks for it. The copy in PREFIX changes an installation: what its
# flags don't name stays.
{ # The shell reads the whole block first, so that an incomplete download runs nothing.
usage='sh install [--name NAME] [--gpu [INDEX] | --build] [--unit | --no-unit] [--updates | --no-updates]
           [--server HOST:PORT] [--ca FILE] [--cert FILE --key FILE] [--prefix DIR]
sh PREFIX/install [--update | --uninstall | FLAGS]

  --name     the name of the worker in the service; by default the name of this machine
  --gpu      measure an NVIDIA GPU: the only one, or the one with this index
  --build    compile for slower devices, and measure nothing
  --unit     let systemd run the worker (needs root); by default the script asks
  --updates  with --unit: let the administrators of the service update this worker; by default the script asks
  --server   the address at which workers reach the service, if it is not the default
  --ca       the authority that signed the certificate of the service; --cert and --key are for mutual TLS
  --update   install the current version of the service
  --uninstall  delete PREFIX, the settings and the unit'
set -eu

service=@service@ workers=@workers@ tls=@tls@ token_needed=@token_needed@ version=@version@

fail() {
    echo "install: $1" >&2
    exit "${2:-8}"
}

# Ask a question on the terminal. Without a terminal, the answer is empty.
ask() {
    answer=
    if { true </dev/tty; } 2>/dev/null; then
        printf '%s ' "$1" >/dev/tty
        read -r answer </dev/tty || true
    fi
}

wants() {
    ask "$1 [y/N]"
    case $answer in [yY]*) echo 1 ;; esac
}

work=$(mktemp -d)
trap 'rm -rf "$work"; stty echo 2>/dev/null </dev/tty || true' EXIT

# Download a file from the service; without a file, check the token.
fetch() {
    reason=$(
        token=${token:-} "$python" - "$service/$1" "${2:-}" "$ca" "$cert" "$key" 2>&1 <<'END'
import json, os, shutil, ssl, sys, urllib.error, urllib.request
url, path, ca, cert, key = sys.argv[1:]
def end(code, reason):
    print(reason)
    sys.exit(code)
try:
    context = ssl.create_default_context(cafile=ca or None)
    if cert:
        context.load_cert_chain(cert, key)
except (OSError, ValueError) as error:
    end(3, error)
request = urllib.request.Request(url)
if not path:
    request.add_header("Authorization", "Bearer " + os.environ["token"].encode().decode("latin-1"))
try:
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        if path:
            with open(path, "wb") as file:
                shutil.copyfileobj(answer, file)
        elif not {"worker", "admin"} & set(json.load(answer)["scopes"]):
            end(5, "the token lacks the scope worker.")
except urllib.error.HTTPError as error:
    try:
        detail = json.load(error)["detail"]
    except (OSError, ValueError, LookupError):
        detail = error
    end(5, detail)
except (OSError, ValueError) as error:
    end(4, getattr(error, "reason", error))
END
    ) || case $? in
    3) fail "the files of --ca, --cert and --key can't be used: $reason" 3 ;;
    4) fail "$service/$1 can't be fetched: check the address and the network ($reason)" 4 ;;
    5) fail "the service refused $service/$1: $reason" 5 ;;
    *) fail "$service/$1 could not be fetched: $reason" ;;
    esac
}

remove_unit() {
    grep -qs "^ExecStart=$prefix/" "$own_unit" || return 0
    [ ! -d /run/systemd/system ] || systemctl stop tunefarm-worker
    systemctl disable --quiet tunefarm-worker
    rm "$own_unit"
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
}

# Print a setting of the installation that this script is the copy of.
earlier() {
    [ -z "$copied" ] || [ ! -r "$kept" ] || sed -n "s/^TUNEFARM_WORKER_$1=//p" "$kept" | sed "s/^'\(.*\)'\$/\1/"
}

name='' gpu='' build='' unit='' updates='' ca='' cert='' key='' prefix='' update='' uninstall='' server_given=''
own_unit=/etc/systemd/system/tunefarm-worker.service
# The installation that this script is the copy of, with its values of extras, ca, cert and key.
copied='' extras=''
if [ -f "$0" ] && grep -qs "^extras='" "$(dirname "$(realpath "$0")")/installed"; then
    copied=$(dirname "$(realpath "$0")")
    # shellcheck source=/dev/null
    . "$copied/installed"
fi
if [ "$(id -u)" -eq 0 ]; then
    usual_prefix=/opt/tunefarm config=/etc/tunefarm
else
    usual_prefix=$HOME/.local/share/tunefarm
    case ${XDG_CONFIG_HOME:-} in /*) config=$XDG_CONFIG_HOME/tunefarm ;; *) config=$HOME/.config/tunefarm ;; esac
fi
while [ $# -gt 0 ]; do
    case $1 in
    --gpu)
        gpu=only
        case ${2:-} in [0-9]*) gpu=$2 && shift ;; esac
        ;;
    --build) build=1 ;;
    --unit) unit=yes ;;
    --no-unit) unit=no ;;
    --updates) updates=yes ;;
    --no-updates) updates=no ;;
    --update) update=1 ;;
    --uninstall) uninstall=1 ;;
    --name | --server | --ca | --cert | --key | --prefix)
        [ $# -gt 1 ] || fail "$1 needs a value; $usage" 2
        case $1 in
        --name) name=$2 ;;
        --server) workers=$2 server_given=1 ;;
        --ca) ca=$(realpath "$2") ;;
        --cert) cert=$(realpath "$2") ;;
        --key) key=$(realpath "$2") ;;
        --prefix) prefix=$2 ;;
        esac
        shift
        ;;
    --help) echo "$usage" && exit ;;
    *) fail "$1 is no flag of this script; $usage" 2 ;;
    esac
    shift
done
[ -z "$gpu" ] || [ -z "$build" ] || fail "a worker measures a GPU or builds: leave out --gpu or --build" 2
[ -n "$copied" ] || [ -z "$update$uninstall" ] ||
    fail "only the copy in an installation updates and uninstalls it: sudo sh $usual_prefix/install" 2
prefix=$(realpath -m "${prefix:-${copied:-$usual_prefix}}")
[ "$prefix" = "$copied" ] || copied=
[ -z "$copied" ] || [ -w "$copied" ] || fail "$copied can't be written: run this script with sudo"
# The file with the settings of an installation in the prefix.
kept=
if [ -f "$prefix/installed" ]; then
    # shellcheck source=/dev/null
    kept=$(. "$prefix/installed" && echo "${settings:-}")
fi

if [ -n "$uninstall" ]; then
    remove_unit
    rm -rf "$prefix" "${kept:-$prefix}"
    echo "$prefix was deleted with its settings; the token is valid until it is revoked: tunefarm token list"
    exit
fi

case $(uname -s)-$(uname -m) in
Linux-x86_64 | Linux-aarch64) ;;
*) fail "a worker needs 64-bit Linux on x86-64 or Arm, this is $(uname -s) on $(uname -m)" ;;
esac
python=
for one in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$one" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$one && break; fi
done
[ -n "$python" ] || fail "a worker needs Python 3.11 or newer: install python3.11 and python3.11-venv"
"$python" -c 'import ensurepip' 2>/dev/null ||
    fail "this Python can't make virtual environments: install python3-venv (apt install python3-venv)"

if [ -z "$update" ]; then
    [ ! -e "$prefix" ] || [ -e "$prefix/installed" ] || [ -z "$(ls -A "$prefix")" ] ||
        fail "$prefix has other files: choose another --prefix, or delete it" 2
    name=${name:-$(earlier NAME)}
    name=${name:-$(uname -n)}
    case $name in *[[:space:]\'\\]*) fail "a worker's name has no spaces, quotes or backslashes: $name" 2 ;; esac
    [ -n "$server_given" ] || [ -z "$(earlier SERVER)" ] || workers=$(earlier SERVER)
    case $workers in ?*:[0-9]*) ;; *) fail "--server is HOST:PORT, such as farm:8761, not $workers" 2 ;; esac
    [ -n "$gpu$build" ] || gpu=$(earlier GPU) build=$(earlier BUILD)
    extras=worker,verify
    [ -z "$gpu" ] || extras=$extras,cuda
    [ -z "$build" ] || extras=$extras,cross
    token=${TUNEFARM_WORKER_TOKEN:-$(earlier TOKEN)}
    if [ -z "$token" ] && [ -n "$token_needed" ]; then
        stty -echo 2>/dev/null </dev/tty || true
        ask "Token with the scope worker (tunefarm token create --name NAME --scope worker):"
        if stty echo 2>/dev/null </dev/tty; then echo >/dev/tty; fi
        token=$answer
        [ -n "$token" ] ||
            fail "a worker of this service needs a token: set TUNEFARM_WORKER_TOKEN, which sudo --preserve-env keeps" 2
    fi
    case $token in *[\'\\]*) fail "a token has no quotes and no backslashes: was it pasted whole?" 2 ;; esac
    [ -z "$token" ] || fetch v1/session
    if [ -z "$unit" ] && grep -qs "^ExecStart=$prefix/" "$own_unit"; then
        unit=yes
    elif [ -z "$unit" ] && [ "$(id -u)" -eq 0 ] && [ -d /run/systemd/system ]; then
        unit=$(wants "Shall systemd run the worker, now and whenever this machine starts?")
    fi
    [ "$unit" != no ] || unit=
    [ -z "$unit" ] || [ "$(id -u)" -eq 0 ] || fail "--unit needs root: run this script with sudo"
    [ -z "$unit" ] || command -v systemctl >/dev/null || fail "--unit needs systemd, and there is no systemctl"
    if [ -n "$unit" ] && [ -e "$own_unit" ] && ! grep -qs "^ExecStart=$prefix/" "$own_unit"; then
        fail "systemd runs another worker of this machine: see $own_unit; use --no-unit for this one"
    fi
    updates=${updates:-$(earlier UPDATES)}
    if [ -z "$updates" ] && [ -n "$unit" ]; then
        updates=$(wants "May the administrators of the service update this worker? They install packages as root then.")
    fi
    [ "$updates" != no ] || updates=
fi

# Packages
fetch install/worker.tar "$work/worker.tar"
tar -xf "$work/worker.tar" -C "$work" --no-same-owner
if [ -z "$update" ]; then
    # Measured code may read the prefix, so the token is stored elsewhere. A worker in another prefix has its own
    # file.
    settings=$config/worker.env
    [ -n "$unit" ] || [ "$prefix" = "$(realpath -m "$usual_prefix")" ] ||
        settings=$config/worker$(printf %s "$prefix" | tr / -).env
    { mkdir -p "$prefix" && : >>"$prefix/installed"; } || fail "$prefix can't be written: run this script with sudo"
    printf "extras='%s' ca='%s' cert='%s' key='%s' settings='%s'\n" "$extras" "$ca" "$cert" "$key" "$settings" \
        >"$prefix/installed"
    fetch install "$prefix/install"
fi
[ -x "$prefix/bin/python" ] || "$python" -m venv "$prefix"
wheel=$(echo "$work"/tunefarm-*.whl)
runtime=$(echo "$work"/tunefarm_runtime-*.whl)
[ -f "$runtime" ] || runtime=
echo "installing $(basename "$wheel") and what it needs into $prefix: some minutes"
"$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: \
    --constraint "$work/constraints.txt" "${wheel}[$extras]" ${runtime:+"$runtime"} ||
    fail "pip could not install the packages: see above; PIP_INDEX_URL, with sudo --preserve-env, names another index"
if [ -n "$update" ]; then
    echo "updated to tunefarm $version or newer"
    exit
fi

# Settings. Variables that this script doesn't write stay.
others=$(grep -Ehs '^[A-Z][A-Z0-9_]*=' "${kept:-$settings}" |
    grep -Ev '^TUNEFARM_WORKER_(SERVER|TOKEN|NAME|TLS|CA|CERT|KEY|GPU|BUILD|UPDATES)=') || true
rm -f "$prefix/worker.env" "${kept:-$settings}" "$settings"
(umask 077 && mkdir -p "$config" && : >"$settings")
setting() { [ -z "$2" ] || printf "TUNEFARM_WORKER_%s='%s'\n" "$1" "$2" >>"$settings"; }
setting SERVER "$workers"
setting TOKEN "$token"
setting NAME "$name"
setting TLS "$tls"
setting GPU "$gpu"
setting BUILD "$build"
setting UPDATES "${unit:+${updates:+1}}"
[ -z "$others" ] || printf '%s\n' "$others" >>"$settings"

if [ -n "$unit" ]; then
    sed "s|/opt/tunefarm|$prefix|g" "$work/tunefarm-worker.service" >"$own_unit"
    # The unit's user can't read the homes, so systemd passes these files on.
    passed_on=/run/credentials/tunefarm-worker.service
    for one in "CA $ca" "CERT $cert" "KEY $key"; do
        variable=${one%% *} file=${one#* }
        [ -z "$file" ] || sed -i "/^EnvironmentFile=/a LoadCredential=$variable:$file\n\
Environment=TUNEFARM_WORKER_$variable=$passed_on/$variable" "$own_unit"
    done
    # These groups open the nodes of GPUs.
    for one in video render; do
        [ -z "$gpu" ] || ! getent group "$one" >/dev/null ||
            sed -i "/^DynamicUser=/a SupplementaryGroups=$one" "$own_unit"
    done
    systemctl enable --quiet tunefarm-worker
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        systemctl restart tunefarm-worker
        echo "the worker $name runs: journalctl --unit tunefarm-worker --follow"
    else
        echo "the worker $name starts with this machine: systemd doesn't run now"
    fi
else
    remove_unit
    setting CA "$ca"
    setting CERT "$cert"
    setting KEY "$key"
    printf '#!/bin/sh\nset -a\n. "%s"\nexec "%s/bin/tunefarm" worker "$@"\n' "$settings" "$prefix" >"$prefix/start"
    chmod +x "$prefix/start"
    echo "start the worker $name with $prefix/start"
fi
exit
}

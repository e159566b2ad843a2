#!/usr/bin/env bash
# Create a CA and a certificate for each server of the cluster:
#   deploy/nats/certificates.sh DIR [NAME ...]          (names: nats-1 nats-2 nats-3)
# Writes DIR/ca.crt, with which clients verify servers, DIR/ca.key, which no server needs, and DIR/NAME/{server.crt,
# server.key,ca.crt} for each server's /etc/banksman/tls. Existing files stay. Certificates are valid for a year. To
# renew one, remove its server.crt, run this script again, then run `nats-server --signal reload`. You can also use
# your own CA: the certificates need the servers' names and both usages (server and client), because servers verify
# each other.
set -euo pipefail

[ $# -ge 1 ] || { sed -n '2,3p' "$0" >&2; exit 2; }
directory=$1
shift
[ $# -gt 0 ] || set -- nats-1 nats-2 nats-3

umask 077
mkdir -p "$directory"
if [ ! -e "$directory/ca.crt" ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=Banksman NATS CA" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -keyout "$directory/ca.key" -out "$directory/ca.crt" 2>/dev/null
fi
for name in "$@"; do
    own=$directory/$name
    mkdir -p "$own"
    cp "$directory/ca.crt" "$own/ca.crt"
    [ ! -e "$own/server.crt" ] || continue
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" \
        -keyout "$own/server.key" -out "$own/server.csr" 2>/dev/null
    openssl x509 -req -in "$own/server.csr" -CA "$directory/ca.crt" -CAkey "$directory/ca.key" -CAcreateserial \
        -days 365 -out "$own/server.crt" 2>/dev/null -extfile <(
            printf 'subjectAltName=DNS:%s,DNS:localhost,IP:127.0.0.1\n' "$name"
            printf 'extendedKeyUsage=serverAuth,clientAuth\nkeyUsage=critical,digitalSignature\n'
            printf 'authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n'
        )
    rm "$own/server.csr"
done

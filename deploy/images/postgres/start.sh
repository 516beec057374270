#!/bin/sh
# Makes the database at the first start, then runs the server. The official image's own script is not used: this one
# needs no root, and gives the scheduler a role without privileges.
set -eu
umask 077
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
data=/var/lib/callsheet/postgres

if [ ! -d "$data" ]; then
    rm -rf "$data.new"
    initdb --pgdata="$data.new" --username=postgres --encoding=UTF8 --locale=C.UTF-8 >&2
    # One line is one command. The password consists of hexadecimal digits.
    postgres --single -D "$data.new" postgres >/dev/null <<SQL
CREATE ROLE callsheet LOGIN PASSWORD '$(cat /run/secrets/postgres.password)'
CREATE DATABASE callsheet OWNER callsheet
SQL
    mv "$data.new" "$data" # what was interrupted before is made anew
fi
exec postgres -D "$data" -c config_file=/etc/callsheet/postgresql.conf

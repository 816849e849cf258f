#!/bin/sh
# Builds tarry-client.jar with a JDK (17 or newer) alone.
#
#   build.sh FOLDER [CLASSPATH]    CLASSPATH has amqp-client; by default Debian's /usr/share/java/amqp-client.jar
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?usage: build.sh FOLDER [CLASSPATH]}
classpath=${2:-/usr/share/java/amqp-client.jar}
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$here/../../src/tarry/__init__.py")

mkdir -p "$folder/classes"
javac --release 17 -Xlint:all -Werror -encoding UTF-8 -cp "$classpath" -d "$folder/classes" "$here"/src/tarry/client/*.java
printf 'Implementation-Title: tarry-client\nImplementation-Version: %s\nAutomatic-Module-Name: tarry.client\n' "$version" \
    >"$folder/manifest"
jar --create --file "$folder/tarry-client.jar" --manifest "$folder/manifest" -C "$folder/classes" .

"""The data: the installed packages as dpkg-query prints them, and the parsed form of a record."""
import os
import shutil
import subprocess


def installed():
    """The raw record of every installed package, by its name:architecture."""
    if not shutil.which("dpkg-query"):
        raise RuntimeError("there is no dpkg-query: this example reads the package records of a Debian machine")
    printed = subprocess.run(["dpkg-query", "--status"], env={**os.environ, "LC_ALL": "C"}, stdout=subprocess.PIPE,
                             check=True).stdout
    records = {}
    # Not every maintainer's name is UTF-8, and a payload is text.
    for raw in printed.decode("utf-8", "replace").split("\n\n"):
        found = fields(raw)
        if found.get("Status", "").endswith(" installed"):
            records[f"{found['Package']}:{found['Architecture']}"] = raw
    return records


def fields(raw):
    """Splits a record into its fields; a line that starts with a blank continues the field before."""
    found, name = {}, None
    for line in raw.splitlines():
        if line[:1].isspace():
            found[name] += "\n" + line.strip()
        elif line:
            name, _, value = line.partition(":")
            found[name] = value.strip()
    return found


def parse(raw):
    """Returns the structured form of a raw record. A pure function, so that a retry is idempotent."""
    found = fields(raw)
    summary, _, description = found.get("Description", "").partition("\n")
    return {
        "name": f"{found['Package']}:{found['Architecture']}",
        "version": found["Version"],
        "section": found.get("Section"),
        "maintainer": found.get("Maintainer"),
        "installed_kb": int(found.get("Installed-Size", 0)),
        # Each dependency is a list of alternatives; versions and architectures are left out.
        "depends": [[choice.split()[0] for choice in need.split("|")]
                    for need in found.get("Depends", "").split(",") if need.strip()],
        "conffiles": [line.split()[0] for line in found.get("Conffiles", "").splitlines() if line],
        "summary": summary,
        "description": description,
    }

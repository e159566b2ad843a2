"""What people do in a shell every day works in the sandbox, with the usual files, names and settings."""

from __future__ import annotations

import shutil

import pytest
from tests.support.docker_engine import FIRST_USE_TIMEOUT_S
from tests.tool_runner.conftest import Runner, only

from banksman.tool_runner.workspaces.files import listing

PROGRAMS = ("curl", "git", "make", "node", "npm", "perl", "sqlite3", "ssh-keygen")
REPOSITORY = "git init -q r && cd r && echo a > a && git add a && git commit -qm first"
COMMANDS = {
    "git init": "git init -q repo && cd repo && git status --short",
    "git commit": f"{REPOSITORY} && git log --oneline",
    "git diff": f"{REPOSITORY} && echo b > a && git diff",
    "git branch": f"{REPOSITORY} && git switch -qc work && git branch",
    "git stash": f"{REPOSITORY} && echo b > a && git stash",
    "git clone": "git init -q --bare r.git && git clone -q r.git copy && cd copy && git remote -v",
    "git patch": f"{REPOSITORY} && git format-patch --root -o ..",
    "python": "python3 -c 'import ssl, socket, sqlite3, json; print(ssl.OPENSSL_VERSION)'",
    "certificates": "python3 -c 'import ssl; c = ssl.create_default_context(); "
    'c.load_verify_locations("/etc/ssl/certs/ca-certificates.crt"); print(len(c.get_ca_certs()) > 50)\' '
    "&& openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout k -out c "
    "-subj /CN=a 2>/dev/null && openssl x509 -in c -noout -subject",
    "python venv": "python3 -m venv --without-pip env && env/bin/python -c 'import sys; print(sys.prefix)'",
    "user of python": "python3 -c 'import getpass, pathlib; print(getpass.getuser(), pathlib.Path.home())'",
    "unittest": "printf 'import unittest\nclass T(unittest.TestCase):\n def test(self): pass\n' > t.py "
    "&& python3 -m unittest t",
    "server on localhost": "python3 -m http.server 8123 >/dev/null 2>&1 & "
    "for i in {1..50}; do curl -sf http://localhost:8123/ >/dev/null && break; sleep 0.1; done; "
    "curl -sf http://localhost:8123/ | head -1; kill %1",
    "make": "printf 'all:\n\t@echo built\n' > Makefile && make",
    "npm test": 'echo \'{"name":"a","version":"1.0.0","scripts":{"test":"node -e 0"}}\' > package.json '
    "&& npm test",
    "node": "node -e 'console.log(os.homedir(), os.userInfo().username)'",
    "sqlite3": "sqlite3 a.db 'create table t(x); insert into t values (1); select * from t'",
    "names": "id -un && whoami && getent passwd agent && hostname && getent hosts localhost sandbox",
    "services": "getent services https && python3 -c 'import socket; print(socket.getservbyname(\"http\"))'",
    "ssh-keygen": "ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -lf key.pub",
    "perl": "perl -MPOSIX -e 'print join(q( ), (getpwuid $<)[0, 7], strftime(q(%Y), gmtime))'",
    "curl": "curl --version && curl -s file:///etc/hosts",
    "time": "date +%Z && TZ=Europe/Berlin date +%Z",
    "locale": "printf 'ä\\n' | wc -m && sort <<< $'b\\na'",
    "terminal": "tput cols 2>/dev/null; clear >/dev/null; ls --color=auto && echo fine",
    "archives": "mkdir d && echo a > d/a && tar czf d.tar.gz d && tar tzf d.tar.gz",
    "text": "printf 'a,1\\nb,2\\n' > t.csv && awk -F, '{s+=$2} END {print s}' t.csv "
    "&& sed -i s/a/c/ t.csv && grep -c . t.csv",
    "home": "echo kept > ~/note && cat ~/note && cd ~ && pwd",
}

pytestmark = pytest.mark.timeout(FIRST_USE_TIMEOUT_S)


@pytest.fixture
def base_image(image_with_programs: str) -> str:
    """In this module, containers have the image of an operator who provides the usual programs."""
    return image_with_programs


@pytest.mark.parametrize("name", COMMANDS)
async def test_everyday_command_works(runner: Runner, name: str) -> None:
    program = name.split()[0]
    if runner.backend == "bwrap" and program in PROGRAMS and shutil.which(program) is None:
        pytest.fail(f"this machine needs {program} for this test")
    outcome = await runner.bash(f"set -e; {COMMANDS[name]}", timeout_s=60)
    assert outcome.value["exit_code"] == 0, outcome.value
    assert str(outcome.value["stdout"]).strip() or "test" in name or "init" in name, outcome.value
    for complaint in ("not found", "No such file", "unknown", "cannot", "I have no name", "Permission"):
        assert complaint not in f"{outcome.value['stdout']}{outcome.value['stderr']}", outcome.value


async def test_commits_name_the_user_and_the_conversation(runner: Runner) -> None:
    """A command can set another identity, which stays."""
    script = "git init -q r; cd r; git commit -q --allow-empty -m a; git log -1 --format='%an <%ae>'"
    outcome = await runner.bash(script, user='Ann "the\nboss" \\ Lee')
    assert outcome.value["stdout"] == 'Ann "the boss" \\ Lee <c1@banksman.invalid>\n'
    await runner.bash("git config --global user.name Bob", user="Ann")
    again = await runner.bash("cd r; git commit -q --allow-empty -m b; git log -1 --format=%an", user="Ann")
    assert again.value["stdout"] == "Bob\n"


async def test_own_files_of_the_platform_are_not_part_of_a_repository(runner: Runner) -> None:
    await runner.bash("git init -q; echo a > a")
    assert (await runner.bash("git status --short")).value["stdout"] == "?? a\n"


async def test_the_home_directory_lives_as_long_as_the_workspace_and_is_not_listed(runner: Runner) -> None:
    await runner.bash("echo kept > ~/note; touch seen")
    assert (await runner.bash("cat ~/note")).value["stdout"] == "kept\n"
    listed = listing(runner.workspace.directory, max_entries=10).entries
    assert [entry.path for entry in listed] == ["seen"]


@only("bwrap", "a container has these from its image")
async def test_names_and_users_of_this_host_are_not_shown(runner: Runner) -> None:
    outcome = await runner.bash(
        "cat /etc/passwd /etc/hosts /etc/services; ls /etc; echo >> /etc/hosts; echo > /etc/new"
    )
    assert len(str(outcome.value["stderr"]).splitlines()) == 2
    assert len(str(outcome.value["stdout"]).splitlines()) < 30

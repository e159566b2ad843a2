"""Commands that people run in a shell every day."""

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
    "pytest": "printf 'def test(): pass\n' > test_a.py && pytest -q && python3 -m pytest -q",
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

COMPLAINTS = ("not found", "No such file", "unknown", "cannot", "I have no name", "Permission")
"""What programs print that miss a file, a name or a right."""

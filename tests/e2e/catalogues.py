"""The texts of the page, read with Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from typing import Any

from tests.support import privileged
from tests.support.paths import ROOT

STATIC = ROOT / "services/gateway/banksman/gateway/interfaces/page/static"
READ = """
import { readdirSync } from 'node:fs';
const [root] = process.argv.slice(1);
const load = async (language) => {
  const names = readdirSync(`${root}/strings/${language}`);
  const found = await Promise.all(names.map((name) => import(`${root}/strings/${language}/${name}`)));
  return Object.assign({}, ...found.map((module) => module.default));
};
const { reactionTo } = await import(`${root}/client/connection.mjs`);
const codes = Array.from({ length: 4000 }, (_, at) => at + 1000);
const closed = codes.filter((code) => reactionTo(code) === 'stopped');
console.log(JSON.stringify({ en: await load('en'), de: await load('de'), closed }));
"""


@cache
def catalogues() -> dict[str, Any]:
    """Return the catalogues of the page, and the close codes after which it does not connect again."""
    node = shutil.which("node")
    privileged.require("node", node is not None, "the texts of the page")
    command = [str(node), "--input-type=module", "-e", READ, str(STATIC)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

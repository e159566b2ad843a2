// The address of NATS and the user's seed, from NATS_URL and NATS_SEED_FILE, or from the files of `banksman up`.

import { readFileSync } from 'node:fs';
import { nkeyAuthenticator } from '@nats-io/transport-node';

export function connection() {
  const { NATS_URL, NATS_SEED_FILE, BANKSMAN_DATA_DIR = '.banksman' } = process.env;
  if (NATS_URL) {
    return { servers: NATS_URL, ...(NATS_SEED_FILE && { authenticator: identity(NATS_SEED_FILE) }) };
  }
  const { url, nkey } = JSON.parse(readFileSync(`${BANKSMAN_DATA_DIR}/nats-context.json`, 'utf8'));
  return { servers: url, authenticator: identity(nkey) };
}

function identity(file) {
  return nkeyAuthenticator(new TextEncoder().encode(readFileSync(file, 'utf8').trim()));
}

/** @banksman/client: a client of a Banksman gateway for Node and browsers. */

export { Api, ApiError } from './api.mjs';
export { Client, connect } from './client.mjs';
export { Connection, RequestError, newId } from './connection.mjs';
export { LogRestored, conversationOf } from './following.mjs';

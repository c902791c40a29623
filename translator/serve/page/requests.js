// Requests to the server.

import { $ } from "./dom.js";
import { AUTO, state } from "./state.js";

const BUSY = [429, 502, 503]; // a limit of the key, a proxy without its server, a full queue
const MOST_SECONDS = 15;

// The server is away or busy: ask again later.
export class Unavailable extends Error {
  constructor(message, seconds = 0) {
    super(message);
    this.seconds = seconds;
  }

  get notice() {
    return `${this.message.replace(/\.$/, "")}. Trying again.`;
  }

  // Milliseconds until the next try: what the server says, or longer each time.
  wait(failures) {
    return 1000 * (this.seconds || Math.min(MOST_SECONDS, 2 ** failures));
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (options?.signal?.aborted || !(error instanceof TypeError)) throw error;
    throw new Unavailable("The server does not answer.");
  }
}

// Return the answer to a request; Unavailable if another try may help, else an Error with the server's words.
export async function request(path, options) {
  const response = await reach(path, options);
  const answer = await response.json().catch(() => ({ error: `The server answers ${response.status}.` }));
  if (BUSY.includes(response.status)) throw new Unavailable(answer.error, Number(response.headers.get("Retry-After")) || 2);
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// The languages chosen; the detected one in place of auto, where a part of a text is asked for that was detected as a whole.
export function languagesAsked(part = false) {
  const source = $("source").value;
  return { source: part && source === AUTO && state.detected || source, target: $("target").value };
}

export function ask(path, fields, signal) {
  const body = JSON.stringify({ ...languagesAsked(), ...fields, api_key: $("key").value });
  return request(path, { method: "POST", headers: { "Content-Type": "application/json" }, signal, body });
}

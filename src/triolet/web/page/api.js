// The server's routes, called as any client calls them. Knows no element of the page.

import { readEvents } from "./sse.js";
import { readKey } from "./storage.js";

// Where the page is, so that it works under any prefix.
export const BASE = new URL(".", document.baseURI);
export const CHAT_URL = new URL("v1/chat/completions", BASE).href;

// `status` is that of HTTP; 0 where there was no answer at all.
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const getJson = (path) => read(path, "json");
export const getText = (path) => read(path, "text");
// `/health` tells its state with 503, too.
export const getHealth = () => read("health", "json", { mayFail: true });

// The chunks of an answer as they come. `body` is sent as it is. Raises ApiError, also in the middle.
export async function* streamChat(body, signal) {
  const response = await call(CHAT_URL, {
    method: "POST",
    body,
    signal,
    headers: { "Content-Type": "application/json" },
  });
  for await (const data of readEvents(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, response.status);
    yield chunk;
  }
  throw new ApiError("The connection was lost before the end of the answer.", 0);
}

async function read(path, how, options) {
  const response = await call(new URL(path, BASE), options);
  try {
    return await response[how]();
  } catch {
    throw new ApiError("What the server answers cannot be read.", response.status);
  }
}

async function call(url, { headers = {}, mayFail = false, ...options } = {}) {
  const key = readKey();
  if (key) headers = { ...headers, Authorization: `Bearer ${key}` };
  let response;
  try {
    response = await fetch(url, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer.", 0);
  }
  if (!response.ok && !(mayFail && response.status === 503)) throw await errorOf(response);
  return response;
}

async function errorOf(response) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not one of the server's own answers: a proxy's, most likely.
  }
  const seconds = response.headers.get("Retry-After");
  if (seconds !== null) message += ` Try again in ${seconds} s.`;
  return new ApiError(message, response.status);
}

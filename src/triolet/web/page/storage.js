// What the browser keeps: conversations and the theme for good, the API key until the tab is closed.

// Several servers under one origin have conversations of their own.
const PREFIX = `triolet:${location.pathname}:`;
const CONVERSATION = `${PREFIX}conversation:`;
const KEY = `${PREFIX}key`;
const THEME = "triolet:theme";

export const readKey = () => read(sessionStorageOrNull(), KEY) ?? "";

export function keepKey(key) {
  if (key) sessionStorageOrNull()?.setItem(KEY, key);
  else sessionStorageOrNull()?.removeItem(KEY);
}

export const readTheme = () => read(localStorageOrNull(), THEME) ?? "auto";

export function keepTheme(theme) {
  if (theme === "auto") localStorageOrNull()?.removeItem(THEME);
  else localStorageOrNull()?.setItem(THEME, theme);
}

export function newConversation(settings = {}) {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), changed: Date.now(), settings, messages: [] };
}

// All that are kept, the latest first. One that cannot be read is left alone and not shown.
export function readConversations() {
  const storage = localStorageOrNull();
  const found = [];
  for (let index = 0; index < (storage?.length ?? 0); index += 1) {
    const name = storage.key(index);
    if (!name.startsWith(CONVERSATION)) continue;
    try {
      const conversation = JSON.parse(storage.getItem(name));
      if (Array.isArray(conversation.messages) && conversation.id) found.push(conversation);
    } catch {
      continue;
    }
  }
  return found.sort((one, other) => other.changed - one.changed);
}

// Whether there was room for it.
export function keepConversation(conversation) {
  conversation.changed = Date.now();
  try {
    localStorage.setItem(CONVERSATION + conversation.id, JSON.stringify(conversation));
    return true;
  } catch {
    return false;
  }
}

export function forgetConversation(id) {
  localStorageOrNull()?.removeItem(CONVERSATION + id);
}

export const isConversationKey = (name) => name === null || name.startsWith(CONVERSATION);

export function titleOf(conversation) {
  const first = conversation.messages.find((message) => message.role === "user");
  return first ? first.content.trim().replace(/\s+/g, " ").slice(0, 60) || "…" : "New conversation";
}

function read(storage, name) {
  return storage?.getItem(name) ?? null;
}

// Browsers may forbid storage, and say so by an exception where it is asked for.
function localStorageOrNull() {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

function sessionStorageOrNull() {
  try {
    return sessionStorage;
  } catch {
    return null;
  }
}

// The body of a request out of a conversation, and the same request as a command. Pure.

export class FieldError extends Error {}

// What is left empty is not sent, and the server's default, the hint, holds.
export const CONTROLS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.05, hint: "1" },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.01, hint: "1" },
  { name: "top_k", label: "Top k", min: 0, step: 1, hint: "0: all" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, hint: "0" },
  { name: "max_completion_tokens", label: "Most tokens", min: 1, step: 1, hint: "all that fit" },
  { name: "seed", label: "Seed", min: 0, step: 1, hint: "random" },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 10, step: 0.01, hint: "1" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, hint: "0" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, hint: "0" },
];

// Raises FieldError for what cannot be sent; ranges are for the server to judge.
export function buildBody(conversation, model) {
  const { settings } = conversation;
  const messages = conversation.messages.filter(isSent).map(sentMessage);
  if (settings.system?.trim()) messages.unshift({ role: "system", content: settings.system });
  const body = { model, messages, stream: true, stream_options: { include_usage: true } };
  for (const control of CONTROLS) {
    const value = settings[control.name] ?? "";
    if (value === "") continue;
    if (!Number.isFinite(Number(value))) throw new FieldError(`${control.label}: not a number.`);
    body[control.name] = Number(value);
  }
  const stops = (settings.stop ?? "").split("\n").filter((line) => line !== "");
  if (stops.length) body.stop = stops;
  const tools = parsed(settings.tools, "Tools", Array.isArray, "a JSON list");
  if (tools !== undefined) body.tools = tools;
  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  return Object.assign(body, parsed(settings.extra, "Other fields", isObject, "a JSON object"));
}

// The text that is sent is the text that is shown.
export const bodyText = (body) => JSON.stringify(body, null, 2);

export function curlCommand(url, text, hasKey) {
  const key = hasKey ? ` \\\n  -H "Authorization: Bearer $TRIOLET_API_KEY"` : "";
  return `curl -N ${quoted(url)} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d ${quoted(text)}`;
}

function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

function parsed(text, label, isRight, kind) {
  if (!text?.trim()) return undefined;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new FieldError(`${label}: not JSON: ${error.message}.`);
  }
  if (!isRight(value)) throw new FieldError(`${label}: must be ${kind}.`);
  return value;
}

// An answer of which nothing came is no part of the conversation.
function isSent(message) {
  return message.role !== "assistant" || message.content !== "" || message.tool_calls.length > 0;
}

function sentMessage({ role, content, tool_calls, tool_call_id }) {
  if (role === "tool") return { role, tool_call_id, content };
  if (role !== "assistant" || !tool_calls.length) return { role, content };
  return { role, content, tool_calls };
}

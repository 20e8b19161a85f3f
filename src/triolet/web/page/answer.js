// An answer as the sum of its chunks. Pure but for the clock it is given.

export function newAnswer() {
  return { role: "assistant", content: "", reasoning: "", tool_calls: [], finish_reason: null, usage: null };
}

export function addChunk(answer, chunk, seconds) {
  if (chunk.usage) answer.usage = chunk.usage;
  const choice = chunk.choices.find((one) => one.index === 0);
  if (!choice) return;
  const { content, reasoning, tool_calls: calls = [] } = choice.delta;
  if ((content || reasoning || calls.length) && answer.first === undefined) answer.first = seconds;
  answer.content += content ?? "";
  answer.reasoning += reasoning ?? "";
  for (const call of calls) addCall(answer.tool_calls, call);
  answer.finish_reason = choice.finish_reason ?? answer.finish_reason;
}

function addCall(calls, { index, id, function: news }) {
  calls[index] ??= { id, type: "function", function: { name: news.name, arguments: "" } };
  calls[index].function.arguments += news.arguments ?? "";
}

// How it went, in words: what was counted, how fast it was and why it ended.
export function summaryOf(answer) {
  const parts = [];
  if (answer.usage) {
    const { prompt_tokens: prompt, completion_tokens: output, prompt_tokens_details: details } = answer.usage;
    const cached = details?.cached_tokens ? ` (${details.cached_tokens} cached)` : "";
    parts.push(`${prompt} prompt tokens${cached}`, `${output} tokens`);
    const decoding = answer.seconds - answer.first;
    if (output > 1 && decoding > 0) parts.push(`${((output - 1) / decoding).toFixed(0)} tokens/s`);
  }
  if (answer.first !== undefined) parts.push(`first after ${answer.first.toFixed(2)} s`);
  if (answer.stopped) parts.push("stopped");
  else if (answer.finish_reason && answer.finish_reason !== "stop") parts.push(ENDINGS[answer.finish_reason] ?? "");
  return parts.filter(Boolean).join(" · ");
}

const ENDINGS = {
  length: "cut at the limit of tokens",
  tool_calls: "waits for the tools' results",
  abort: "ended by the server's operator",
  timeout: "out of time",
};

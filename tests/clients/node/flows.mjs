// The ordinary flows of the official Node client against a server: `node flows.mjs BASE_URL MODEL`.
// Writes what came of each as one JSON object; any failure is the exit code.
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "Name three colours." }];
const settings = { model, messages, temperature: 0, max_tokens: 16 };
const city = { type: "string", enum: ["Oslo", "Rome"] };
const parameters = {
  type: "object",
  properties: { city },
  required: ["city"],
  additionalProperties: false,
};

async function chat() {
  const answer = await client.chat.completions.create(settings);
  return { text: answer.choices[0].message.content, usage: answer.usage };
}

async function stream() {
  const events = await client.chat.completions.create({ ...settings, stream: true });
  let text = "";
  for await (const event of events) text += event.choices[0]?.delta?.content ?? "";
  return { text };
}

async function helper() {
  const runner = client.chat.completions.stream(settings);
  const deltas = [];
  runner.on("content", (delta) => deltas.push(delta));
  return { text: await runner.finalContent(), joined: deltas.join("") };
}

async function tools() {
  const answer = await client.chat.completions.create({
    ...settings,
    max_tokens: 60,
    tools: [{ type: "function", function: { name: "weather", parameters } }],
    tool_choice: "required",
    parallel_tool_calls: false,
  });
  const [call] = answer.choices[0].message.tool_calls;
  return { name: call.function.name, arguments: JSON.parse(call.function.arguments) };
}

async function parse() {
  const answer = await client.chat.completions.parse({
    ...settings,
    max_tokens: 30,
    response_format: { type: "json_schema", json_schema: { name: "place", strict: true, schema: parameters } },
  });
  return JSON.parse(answer.choices[0].message.content);
}

async function responses() {
  const asked = { model, input: messages[0].content, temperature: 0, max_output_tokens: 16 };
  const plain = await client.responses.create(asked);
  const events = client.responses.stream(asked);
  const final = await events.finalResponse();
  const next = await client.responses.create({ ...asked, previous_response_id: plain.id });
  return { text: plain.output_text, streamed: final.output_text, follows: next.previous_response_id === plain.id };
}

async function wrong() {
  try {
    await client.chat.completions.create({ ...settings, temperature: 9 });
  } catch (error) {
    return { status: error.status, param: error.param, kind: error.constructor.name };
  }
}

async function left() {
  const events = await client.chat.completions.create({ ...settings, max_tokens: 500, stream: true });
  for await (const _ of events) break;
  return { models: (await client.models.list()).data.map((entry) => entry.id) };
}

const results = {};
for (const flow of [chat, stream, helper, tools, parse, responses, wrong, left]) {
  results[flow.name] = await flow();
}
console.log(JSON.stringify(results));

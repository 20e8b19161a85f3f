// The live view of the engine, drawn from `/metrics` and `/health`, the same numbers that monitoring sees.

import { getHealth, getText } from "./api.js";
import { Chart } from "./chart.js";
import { byId, element, setText } from "./dom.js";
import { History, quantileOf, rateBetween, readingOf } from "./history.js";
import { byLabel, parseMetrics } from "./prometheus.js";

const SHOWN_SECONDS = 300;
const RECENT_SECONDS = 60;
const RATE_SECONDS = 5;
const QUANTILES = [0.5, 0.95, 0.99];

const count = (value) => (value === null ? "–" : Math.round(value).toLocaleString("en"));
const rate = (value) => (value === null ? "–" : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 }));
const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)} %`);

export function duration(seconds) {
  if (seconds === null) return "–";
  return seconds < 1 ? `${(1000 * seconds).toPrecision(3)} ms` : `${seconds.toPrecision(3)} s`;
}

// Each number: its name for tests and styles, its label, and its text out of the history.
const NUMBERS = [
  ["running", "Running", (history) => count(history.last.running)],
  ["waiting", "Waiting", (history) => count(history.last.waiting)],
  ["kv-blocks", "KV blocks used", ({ last }) => `${count(last.usedBlocks)} of ${count(last.blocks)}`],
  ["output-rate", "Output tokens/s", (history) => rate(history.rate("outputTokens", RATE_SECONDS))],
  ["prompt-rate", "Prompt tokens/s", (history) => rate(history.rate("promptTokens", RATE_SECONDS))],
  ["prefix-hits", "Prefix-cache hits", (history) => percent(history.share("prefixHits", "prefixQueries", RECENT_SECONDS))],
  ["acceptance", "Guesses accepted", (history) => percent(history.share("acceptedTokens", "draftTokens", RECENT_SECONDS))],
  ["preemptions", "Preemptions", (history) => count(history.growth("preemptions", RECENT_SECONDS))],
];
const LATENCIES = [
  ["firstToken", "Time to first token"],
  ["interToken", "Between tokens"],
];

export class LiveView {
  constructor() {
    this.history = new History(SHOWN_SECONDS);
    this.numbers = new Map();
    byId("numbers").append(...NUMBERS.map(([name, label]) => this.number(name, label)));
    byId("latencies").append(...LATENCIES.map(([name, label]) => this.latencyRow(name, label)));
    this.charts = [
      new Chart("Tokens per second", ["output", "prompt"], { seconds: SHOWN_SECONDS, format: rate, atLeast: 10 }),
      new Chart("Requests", ["running", "waiting"], { seconds: SHOWN_SECONDS, format: count, atLeast: 4 }),
      new Chart("KV blocks used", ["share"], { seconds: SHOWN_SECONDS, format: percent, atLeast: 0.1 }),
      new Chart("Time between tokens", ["median", "95 %"], { seconds: SHOWN_SECONDS, format: duration, atLeast: 0.01 }),
    ];
    byId("charts").append(...this.charts.map((chart) => chart.root));
  }

  // One reading of the server; returns its health. Raises ApiError.
  async refresh() {
    const [text, health] = [await getText("metrics"), await getHealth()];
    const samples = parseMetrics(text);
    this.history.add(readingOf(samples, performance.now() / 1000));
    this.showNumbers();
    this.showCharts();
    showHealth(health);
    showOutcomes(byLabel(samples, "triolet_request_outcome_total", "finished_reason"));
    return health;
  }

  number(name, label) {
    const value = element("dd", { id: `number-${name}` });
    this.numbers.set(name, value);
    return element("div", {}, element("dt", { textContent: label }), value);
  }

  latencyRow(name, label) {
    const cells = QUANTILES.map((share) => element("td", { id: `${name}-${100 * share}` }));
    this.numbers.set(name, cells);
    return element("tr", {}, element("th", { scope: "row", textContent: label }), ...cells);
  }

  showNumbers() {
    for (const [name, , text] of NUMBERS) setText(this.numbers.get(name), text(this.history));
    for (const [name] of LATENCIES) {
      this.numbers.get(name).forEach((cell, index) => {
        setText(cell, duration(this.history.quantile(name, QUANTILES[index], RECENT_SECONDS)));
      });
    }
  }

  showCharts() {
    const { history } = this;
    const [tokens, requests, blocks, latency] = this.charts;
    const draw = (chart, ...values) => chart.draw(values.map((value) => history.series(value)), history.last.time);
    draw(tokens, rateBetween("outputTokens"), rateBetween("promptTokens"));
    draw(requests, ({ running }) => running, ({ waiting }) => waiting);
    draw(blocks, (reading) => (reading.blocks ? reading.usedBlocks / reading.blocks : null));
    draw(latency, quantileOf("interToken", 0.5), quantileOf("interToken", 0.95));
  }
}

const RANK_CELLS = [
  (rank) => rank.rank,
  (rank) => rank.state,
  (rank) => rank.num_running,
  (rank) => rank.num_waiting,
  (rank) => percent(rank.kv_usage),
  (rank) => rank.num_restarts,
  (rank) => (rank.last_step_age === null ? "idle" : duration(rank.last_step_age)),
  (rank) => rank.cause ?? "",
];

// Rows and cells stay, so that nothing flickers and a selection holds.
function showHealth(health) {
  const rows = byId("ranks");
  while (rows.rows.length > health.ranks.length) rows.deleteRow(-1);
  health.ranks.forEach((rank, index) => {
    const row = rows.rows[index] ?? rows.insertRow();
    RANK_CELLS.forEach((text, column) => setText(row.cells[column] ?? row.insertCell(), String(text(rank))));
    row.cells[1].className = `state ${rank.state}`;
  });
  setText(byId("engine-detail"), detailOf(health));
}

// Why the engine is in the state that it is in, as far as there is more to say than the state.
export function detailOf(health) {
  if (health.cause) return health.cause;
  if (health.phase) return `${health.phase}, ${Math.round(health.phase_seconds ?? 0)} s`;
  if (health.is_sleeping) return "asleep";
  if (health.is_paused) return "paused";
  if (health.oldest_waiting_age) return `the oldest waiting request is ${duration(health.oldest_waiting_age)} old`;
  return "";
}

function showOutcomes(outcomes) {
  const list = byId("outcomes");
  const shown = [...outcomes].filter(([, number]) => number > 0);
  while (list.children.length > shown.length) list.lastChild.remove();
  shown.forEach(([name, number], index) => {
    const item = list.children[index] ?? list.appendChild(element("li"));
    setText(item, `${name} ${count(number)}`);
  });
}

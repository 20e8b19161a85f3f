// What the engine did lately: differences of counters between two readings of `/metrics`. Pure.

import { buckets, total } from "./prometheus.js";

const COUNTERS = {
  promptTokens: "triolet_prompt_tokens_computed_total",
  outputTokens: "triolet_generation_tokens_total",
  prefixQueries: "triolet_prefix_cache_queries_total",
  prefixHits: "triolet_prefix_cache_hits_total",
  draftTokens: "triolet_spec_decode_num_draft_tokens_total",
  acceptedTokens: "triolet_spec_decode_num_accepted_tokens_total",
  preemptions: "triolet_num_preemptions_total",
};
const HISTOGRAMS = {
  firstToken: "triolet_time_to_first_token_seconds",
  interToken: "triolet_inter_token_latency_seconds",
};

// One reading. `time` is in seconds of any clock that only goes forward.
export function readingOf(samples, time) {
  const reading = { time, counters: {}, histograms: {} };
  for (const [name, metric] of Object.entries(COUNTERS)) reading.counters[name] = total(samples, metric);
  for (const [name, metric] of Object.entries(HISTOGRAMS)) reading.histograms[name] = buckets(samples, metric);
  reading.running = total(samples, "triolet_num_requests_running");
  reading.waiting = total(samples, "triolet_num_requests_waiting");
  reading.blocks = total(samples, "triolet_kv_cache_blocks");
  reading.usedBlocks = usedBlocks(samples);
  return reading;
}

// The readings of the last `seconds`, and the one before them to compare with.
export class History {
  constructor(seconds) {
    this.seconds = seconds;
    this.readings = [];
  }

  add(reading) {
    const last = this.readings.at(-1);
    // Counters only grow, unless the server is another one by now.
    if (last && Object.keys(COUNTERS).some((name) => reading.counters[name] < last.counters[name])) this.readings = [];
    this.readings.push(reading);
    while (this.readings.length > 2 && this.readings[1].time <= reading.time - this.seconds) this.readings.shift();
  }

  get last() {
    return this.readings.at(-1);
  }

  // The reading that the last `seconds` began with, or the first there is.
  before(seconds) {
    const start = this.last.time - seconds;
    return this.readings.findLast((reading) => reading.time <= start) ?? this.readings[0];
  }

  // How much a counter grew in the last `seconds`.
  growth(name, seconds) {
    return this.last.counters[name] - this.before(seconds).counters[name];
  }

  // Growth per second; null where there is nothing yet to compare with.
  rate(name, seconds) {
    const passed = this.last.time - this.before(seconds).time;
    return passed > 0 ? this.growth(name, seconds) / passed : null;
  }

  // Null where there was nothing to have a share of.
  share(part, whole, seconds) {
    const all = this.growth(whole, seconds);
    return all > 0 ? this.growth(part, seconds) / all : null;
  }

  quantile(name, share, seconds) {
    return quantileBetween(this.before(seconds).histograms[name], this.last.histograms[name], share);
  }

  // A value for each reading but the first, from it and the one before.
  series(valueOf) {
    return this.readings.slice(1).map((reading, index) => ({
      time: reading.time,
      value: valueOf(reading, this.readings[index]),
    }));
  }
}

// For a series: the quantile of what was observed between two readings.
export const quantileOf = (name, share) => (now, before) =>
  quantileBetween(before.histograms[name], now.histograms[name], share);

export const rateBetween = (name) => (now, before) =>
  (now.counters[name] - before.counters[name]) / (now.time - before.time);

// The value below which a `share` of what was observed in between lies, even within a bucket. Null for nothing.
export function quantileBetween(before, now, share) {
  const counts = now.map(([end, count], index) => [end, count - (before[index]?.[1] ?? 0)]);
  const wanted = share * (counts.at(-1)?.[1] ?? 0);
  if (wanted <= 0) return null;
  let [start, passed] = [0, 0];
  for (const [end, count] of counts) {
    if (count >= wanted) {
      // Beyond the last end there is no more to say than that.
      return end === Infinity ? start : start + ((end - start) * (wanted - passed)) / (count - passed);
    }
    [start, passed] = [end, count];
  }
  return null;
}

function usedBlocks(samples) {
  const shares = samples.get("triolet_kv_cache_usage_perc") ?? [];
  const blocks = samples.get("triolet_kv_cache_blocks") ?? [];
  return Math.round(shares.reduce((sum, { value }, index) => sum + value * (blocks[index]?.value ?? 0), 0));
}

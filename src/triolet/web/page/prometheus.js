// The text format of Prometheus, read into samples by name. Pure.

// In names of models a dot may be a carriage return, too.
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/s;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/gs;
const ESCAPES = { "\\n": "\n" };

// A map of names to lists of `{ labels, value }`.
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = line.match(SAMPLE);
    if (!found) continue;
    const [, name, labels, value] = found;
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ labels: parseLabels(labels), value: numberOf(value) });
  }
  return samples;
}

// The sum over all labels, such as the engines; 0 where there is none.
export function total(samples, name) {
  return (samples.get(name) ?? []).reduce((sum, { value }) => sum + value, 0);
}

// A histogram of all labels together: `[[upper end, cumulative count], …]`, the last end being infinite.
export function buckets(samples, name) {
  const counts = new Map();
  for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
    const end = numberOf(labels.le);
    counts.set(end, (counts.get(end) ?? 0) + value);
  }
  return [...counts].sort(([one], [other]) => one - other);
}

// By the value of one label.
export function byLabel(samples, name, label) {
  return new Map((samples.get(name) ?? []).map(({ labels, value }) => [labels[label], value]));
}

function parseLabels(text) {
  const labels = {};
  for (const [, name, value] of (text ?? "").matchAll(LABEL)) {
    labels[name] = value.replace(/\\./gs, (escape) => ESCAPES[escape] ?? escape[1]);
  }
  return labels;
}

function numberOf(text) {
  return text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text);
}

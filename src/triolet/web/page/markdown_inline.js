// The Markdown within a line: code, bold, italic, links and escapes. All else is text.

import { element } from "./dom.js";

// A part's content cannot hold what ends it, so none is searched for twice. Only links to the web are links.
const PARTS = new RegExp(
  [
    "(?<ticks>``?)(?<code>[^`]+)\\k<ticks>(?!`)",
    "\\*\\*\\*(?=\\S)(?<both>[^*\\n]+)(?<=\\S)\\*\\*\\*",
    "\\*\\*(?=\\S)(?<bold>(?:[^*\\n]|\\*(?!\\*))+)(?<=\\S)\\*\\*",
    "\\*(?=\\S)(?<italic>[^*\\n]+)(?<=\\S)\\*",
    "(?<![\\w_])_(?=\\S)(?<underlined>[^_\\n]+)(?<=\\S)_(?!\\w)",
    "\\[(?<label>[^[\\]\\n]+)\\]\\((?<url>https?://[^\\s()]+)\\)",
    "\\\\(?<escaped>[\\\\`*_{}[\\]()#+\\-.!|>~])",
  ].join("|"),
  "gu",
);
const MAX_DEPTH = 4;

export function inlineNodes(text, depth = 0) {
  if (depth > MAX_DEPTH) return [text];
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(PARTS)) {
    if (found.index > end) nodes.push(text.slice(end, found.index));
    nodes.push(nodeOf(found.groups, depth + 1));
    end = found.index + found[0].length;
  }
  if (end < text.length) nodes.push(text.slice(end));
  return nodes;
}

function nodeOf({ code, both, bold, italic, underlined, label, url, escaped }, depth) {
  if (code !== undefined) return element("code", { textContent: code });
  if (both !== undefined) return element("strong", {}, element("em", {}, ...inlineNodes(both, depth)));
  if (bold !== undefined) return element("strong", {}, ...inlineNodes(bold, depth));
  if (italic !== undefined) return element("em", {}, ...inlineNodes(italic, depth));
  if (underlined !== undefined) return element("em", {}, ...inlineNodes(underlined, depth));
  if (escaped !== undefined) return escaped;
  // Where it leads is shown, for the model chooses both.
  const link = { href: url, title: url, target: "_blank", rel: "noopener noreferrer nofollow" };
  return element("a", link, ...inlineNodes(label, depth));
}

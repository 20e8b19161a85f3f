// A small Markdown as elements: paragraphs, headings, lists, quotes, tables, rules and code.
//
// What a model writes is data. It becomes text nodes and a fixed set of elements, never markup; whatever is not
// understood stays as it was written. Every pattern is linear in the text: no repeated part of one can give
// back what it took to the part before it.

import { copyButton, element, setText } from "./dom.js";
import { inlineNodes } from "./markdown_inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,12})([-*+]|\d{1,9}[.)])( +|$)/;
const TABLE_LINE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const MAX_DEPTH = 6;

// Shows a text that grows. Blocks that have not changed keep their elements, and with them selection and focus.
export class MarkdownView {
  constructor(container) {
    this.container = container;
    this.shown = [];
  }

  update(text) {
    const blocks = splitBlocks(text);
    let same = 0;
    while (same < blocks.length && this.shown[same]?.source === blocks[same].source) same += 1;
    if (!this.growsCode(blocks, same)) {
      while (this.container.childNodes.length > same) this.container.lastChild.remove();
      this.container.append(...blocks.slice(same).map((block) => blockElement(block, 0)));
    }
    this.shown = blocks;
  }

  // Whether all that is new is in the code block at the end, which then keeps its place and its button.
  growsCode(blocks, same) {
    const [old, now] = [this.shown[same], blocks[same]];
    const isLast = same === blocks.length - 1 && same === this.shown.length - 1;
    if (!isLast || old.kind !== "code" || now.kind !== "code" || old.lines[0] !== now.lines[0]) return false;
    setText(this.container.children[same].querySelector("code"), codeOf(now));
    return true;
  }
}

// The blocks of a text: `kind`, the `lines` it is made of, and these as one `source`.
export function splitBlocks(text) {
  const lines = text.split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (lines[at].trim() === "") {
      at += 1;
      continue;
    }
    const kind = kindAt(lines, at);
    const end = ENDS[kind](lines, at);
    const own = lines.slice(at, end);
    blocks.push({ kind, lines: own, source: `${kind}\n${own.join("\n")}` });
    at = end;
  }
  return blocks;
}

function kindAt(lines, at) {
  const line = lines[at];
  if (FENCE.test(line)) return "code";
  if (HEADING.test(line)) return "heading";
  if (RULE.test(line)) return "rule";
  if (QUOTE.test(line)) return "quote";
  if (ITEM.test(line)) return "list";
  if (line.includes("|") && TABLE_LINE.test(lines[at + 1] ?? "") && lines[at + 1].includes("|")) return "table";
  return "paragraph";
}

const ENDS = {
  code(lines, at) {
    const fence = lines[at].match(FENCE)[1];
    for (let end = at + 1; end < lines.length; end += 1) {
      const line = lines[end].trim();
      if (line.startsWith(fence) && line.replaceAll(fence[0], "") === "") return end + 1;
    }
    return lines.length;
  },
  heading: (lines, at) => at + 1,
  rule: (lines, at) => at + 1,
  quote: (lines, at) => endWhere(lines, at, (line) => !QUOTE.test(line)),
  table: (lines, at) => endWhere(lines, at, (line) => !line.includes("|")),
  paragraph: (lines, at) => endWhere(lines, at, (line, end) => line.trim() === "" || startsBlock(lines, end)),
  list(lines, at) {
    const isMore = (line) => ITEM.test(line) || /^( {2,}|\t)\S/.test(line);
    return endWhere(lines, at, (line, end) => {
      if (line.trim() !== "") return !isMore(line) && (lines[end - 1].trim() === "" || startsBlock(lines, end));
      return !isMore(lines[end + 1] ?? "");
    });
  },
};

function endWhere(lines, at, isOver) {
  let end = at + 1;
  while (end < lines.length && !isOver(lines[end], end)) end += 1;
  return end;
}

const startsBlock = (lines, at) => kindAt(lines, at) !== "paragraph";

function blockElement(block, depth) {
  const inner = (lines) => {
    if (depth >= MAX_DEPTH) return [lines.join("\n")];
    return splitBlocks(lines.join("\n")).map((one) => blockElement(one, depth + 1));
  };
  switch (block.kind) {
    case "code":
      return codeElement(block);
    case "heading": {
      const [, marks, title] = block.lines[0].match(HEADING);
      // Below those of the page and of the message.
      return element(`h${Math.min(6, marks.length + 3)}`, {}, ...inlineNodes(title.replace(/ #+ *$/, "")));
    }
    case "rule":
      return element("hr");
    case "quote":
      return element("blockquote", {}, ...inner(block.lines.map((line) => line.replace(QUOTE, ""))));
    case "list":
      return listElement(block.lines, inner);
    case "table":
      return tableElement(block.lines);
    default:
      return element("p", {}, ...inlineNodes(block.lines.join("\n")));
  }
}

function codeElement(block) {
  const language = block.lines[0].match(FENCE)[2];
  const code = element("code", { textContent: codeOf(block) });
  const head = element(
    "div",
    { className: "code-head" },
    element("span", { textContent: language }),
    copyButton(() => code.textContent),
  );
  const scrolled = element("pre", { tabIndex: 0, "aria-label": `Code ${language}`.trim() }, code);
  return element("div", { className: "code" }, head, scrolled);
}

function codeOf({ lines }) {
  const isClosed = lines.length > 1 && ENDS.code(lines, 0) === lines.length && FENCE.test(lines.at(-1));
  return lines.slice(1, isClosed ? -1 : undefined).join("\n");
}

function listElement(lines, inner) {
  const [, indent, marker] = lines[0].match(ITEM);
  const items = [];
  for (const line of lines) {
    const found = line.match(ITEM);
    if (found && found[1].length <= indent.length + 1) items.push([line.slice(found[0].length)]);
    else items.at(-1).push(line.replace(new RegExp(`^ {0,${indent.length + marker.length + 1}}`), ""));
  }
  const isOrdered = /\d/.test(marker);
  const list = element(isOrdered ? "ol" : "ul", {}, ...items.map((item) => element("li", {}, ...inner(item))));
  if (isOrdered) list.start = Number.parseInt(marker, 10);
  return list;
}

function tableElement([head, , ...rows]) {
  const row = (line, tag) => element("tr", {}, ...cellsOf(line).map((cell) => element(tag, {}, ...inlineNodes(cell))));
  const body = element("tbody", {}, ...rows.map((line) => row(line, "td")));
  const table = element("table", {}, element("thead", {}, row(head, "th")), body);
  return element("div", { className: "table", tabIndex: 0, role: "region", "aria-label": "Table" }, table);
}

function cellsOf(line) {
  return line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|").map((cell) => cell.trim());
}

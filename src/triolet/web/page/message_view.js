// One message as an element: text, reasoning apart, calls of tools, how it went, and what can be done with it.

import { summaryOf } from "./answer.js";
import { copyButton, element, setText } from "./dom.js";
import { MarkdownView } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool" };

// `actions`: `edit(text)`, `regenerate()` and `giveResults(results)`, each where it makes sense.
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.text = element("div", { className: "text" });
    this.markdown = new MarkdownView(this.text);
    this.reasoning = element("div", { className: "text" });
    this.reasoningMarkdown = new MarkdownView(this.reasoning);
    this.thoughts = element(
      "details",
      { className: "reasoning", hidden: true },
      element("summary", { textContent: "Reasoning" }),
      this.reasoning,
    );
    this.calls = element("div", { className: "calls" });
    this.problem = element("p", { className: "problem", hidden: true });
    this.summary = element("span", { className: "summary" });
    this.buttons = element("span", { className: "buttons" });
    this.root = element(
      "article",
      { className: `message ${message.role}`, "aria-label": this.name },
      element("h3", { textContent: this.name }),
      this.thoughts,
      this.text,
      this.calls,
      this.problem,
      element("footer", {}, this.summary, this.buttons),
    );
    this.update();
  }

  get name() {
    const { role, name } = this.message;
    return name ? `${NAMES[role]} ${name}` : NAMES[role];
  }

  // Shows what the message is by now. While it is `growing` it has no buttons.
  update({ isGrowing = false, isLast = false } = {}) {
    const { message } = this;
    this.root.classList.toggle("growing", isGrowing);
    this.root.setAttribute("aria-busy", String(isGrowing));
    if (message.role === "assistant") this.markdown.update(message.content);
    else setText(this.text, message.content);
    this.showReasoning(isGrowing);
    this.showCalls(isGrowing, isLast);
    this.problem.hidden = !message.error;
    setText(this.problem, message.error ?? "");
    setText(this.summary, message.role === "assistant" && !isGrowing ? summaryOf(message) : "");
    this.buttons.replaceChildren(...(isGrowing ? [] : this.makeButtons(isLast)));
  }

  // Open as long as there is nothing else to read, unless the reader decides otherwise.
  showReasoning(isGrowing) {
    const { reasoning = "", content } = this.message;
    this.thoughts.hidden = reasoning === "";
    this.reasoningMarkdown.update(reasoning);
    const isOpen = isGrowing && content === "";
    if (this.wasOpened !== isOpen) this.thoughts.open = isOpen;
    this.wasOpened = isOpen;
  }

  showCalls(isGrowing, isLast) {
    const calls = this.message.tool_calls ?? [];
    const isAsked = isLast && !isGrowing && calls.length > 0;
    const shown = JSON.stringify([calls, isAsked]);
    if (shown === this.shownCalls) return;
    this.shownCalls = shown;
    const results = calls.map((call) => resultField(call));
    const parts = calls.map((call, index) => callElement(call, isAsked ? results[index] : null));
    this.calls.replaceChildren(...parts);
    if (!isAsked) return;
    const give = () => this.actions.giveResults(results.map((field) => field.value));
    this.calls.append(element("button", { type: "button", textContent: "Send results", onclick: give }));
  }

  makeButtons(isLast) {
    const { message } = this;
    const made = [];
    const add = (label, onclick) =>
      made.push(element("button", { type: "button", className: "small", textContent: label, onclick }));
    if (message.content) made.push(copyButton(() => message.content));
    if (message.role === "user") add("Edit", () => this.edit());
    if (message.role === "assistant" && isLast) add("Regenerate", () => this.actions.regenerate());
    return made;
  }

  edit() {
    const field = element("textarea", { value: this.message.content, "aria-label": "Edited message" });
    const leave = () => {
      form.remove();
      this.text.hidden = false;
      this.buttons.querySelector("button")?.focus();
    };
    const save = () => field.value.trim() && this.actions.edit(field.value);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    const form = element(
      "div",
      { className: "editing" },
      field,
      element("button", { type: "button", textContent: "Send again", onclick: save }),
      element("button", { type: "button", className: "quiet", textContent: "Leave as it was", onclick: leave }),
    );
    this.text.hidden = true;
    this.text.after(form);
    field.focus();
  }
}

function callElement({ id, function: { name, arguments: given } }, field) {
  const head = element("h4", {}, "Calls ", element("code", { textContent: name }));
  const shown = element("pre", { tabIndex: 0, "aria-label": `Arguments for ${name}`, textContent: pretty(given) });
  const section = element("section", { className: "call", title: id ?? "" }, head, shown);
  if (field) section.append(element("label", {}, "Result", field));
  return section;
}

function resultField({ function: { name } }) {
  return element("textarea", { rows: 2, "aria-label": `Result of ${name}`, placeholder: "What the tool returns" });
}

// Arguments that are still on their way are no JSON yet.
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

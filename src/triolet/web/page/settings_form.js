// The form beside the chat: system prompt, sampling, stop strings, tools and whatever else the server takes.

import { element } from "./dom.js";
import { CONTROLS } from "./request.js";

const AREAS = [
  { name: "stop", label: "Stop strings", hint: "One in a line", rows: 2 },
  { name: "tools", label: "Tools", hint: '[{"type": "function", "function": {"name": …}}]', rows: 3, isCode: true },
  { name: "extra", label: "Other fields", hint: '{"response_format": …}', rows: 3, isCode: true },
];

// `onChange` is told the settings as they are by now. Values are the texts that were typed.
export class SettingsForm {
  constructor(container, onChange) {
    this.fields = new Map();
    this.onChange = onChange;
    const system = { name: "system", label: "System prompt", hint: "None", rows: 4 };
    container.append(
      this.area(system),
      element("div", { className: "numbers" }, ...CONTROLS.map((control) => this.number(control))),
      ...AREAS.map((area) => this.area(area)),
      element("button", { type: "button", className: "quiet", textContent: "Back to defaults", onclick: () => this.clear() }),
    );
  }

  show(settings) {
    for (const [name, field] of this.fields) field.value = settings[name] ?? "";
  }

  get values() {
    const given = [...this.fields].map(([name, field]) => [name, field.value]);
    return Object.fromEntries(given.filter(([, value]) => value !== ""));
  }

  clear() {
    this.show({});
    this.onChange(this.values);
  }

  number({ name, label, hint, ...limits }) {
    return this.labelled(name, label, element("input", { type: "number", placeholder: hint, ...limits }));
  }

  area({ name, label, hint, rows, isCode = false }) {
    const properties = { placeholder: hint, rows, spellcheck: !isCode, className: isCode ? "code-field" : "" };
    return this.labelled(name, label, element("textarea", properties));
  }

  labelled(name, label, field) {
    field.name = name;
    field.addEventListener("change", () => this.onChange(this.values));
    this.fields.set(name, field);
    return element("label", {}, element("span", { textContent: label }), field);
  }
}

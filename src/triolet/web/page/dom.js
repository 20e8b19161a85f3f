// Elements from values. Text is always text: nothing here, or anywhere in this page, turns a string into markup.

const SVG = "http://www.w3.org/2000/svg";

// `properties` are those of the element; names with a hyphen are attributes, and `on…` are listeners.
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.includes("-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

export function svgElement(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

// Only where it changes, so that selections stay and screen readers are not told twice.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Said by screen readers when they come to it, once.
export function announce(text) {
  setText(byId("announcements"), text);
}

// Copies what `text()` returns, and says so where the button is.
export function copyButton(text, label = "Copy") {
  const button = element("button", { type: "button", className: "small", textContent: label });
  button.addEventListener("click", async () => {
    setText(button, (await copy(text())) ? "Copied" : "Not allowed here");
    setTimeout(() => setText(button, label), 1500);
  });
  return button;
}

// The clipboard's interface is there on HTTPS and on this machine alone; elsewhere a selection is copied.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", { value: text, className: "visually-hidden" });
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }
}

// The list of conversations: which is open, opening another, and forgetting one.

import { element } from "./dom.js";
import { titleOf } from "./storage.js";

export class ConversationList {
  constructor(container, { onOpen, onForget }) {
    this.container = container;
    this.onOpen = onOpen;
    this.onForget = onForget;
  }

  show(conversations, openId) {
    this.container.replaceChildren(...conversations.map((one) => this.item(one, one.id === openId)));
  }

  item(conversation, isOpen) {
    const title = titleOf(conversation);
    const open = element("button", { type: "button", className: "title", textContent: title, title });
    open.addEventListener("click", () => this.onOpen(conversation.id));
    if (isOpen) open.setAttribute("aria-current", "true");
    return element("li", {}, open, this.forgetButton(conversation.id, title));
  }

  // Asks once more in its own place, as what it takes away cannot be had back.
  forgetButton(id, title) {
    const button = element("button", { type: "button", className: "small forget", textContent: "×" });
    const settle = () => {
      button.textContent = "×";
      button.setAttribute("aria-label", `Delete ${title}`);
    };
    settle();
    button.addEventListener("blur", settle);
    button.addEventListener("click", () => {
      if (button.textContent === "×") {
        button.textContent = "Delete?";
        button.setAttribute("aria-label", `Really delete ${title}`);
      } else {
        this.onForget(id);
      }
    });
    return button;
  }
}

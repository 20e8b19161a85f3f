// Asks for the API key where the server needs one. It is kept until the tab is closed, and shown nowhere.

import { byId } from "./dom.js";
import { keepKey, readKey } from "./storage.js";

// `onKey` is called when there is another one.
export class KeyDialog {
  constructor(onKey) {
    this.dialog = byId("key-dialog");
    this.field = byId("key");
    this.opener = byId("open-key");
    this.opener.hidden = readKey() === "";
    this.opener.addEventListener("click", () => this.open(""));
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      keepKey(this.field.value.trim());
      this.close();
      onKey();
    });
    byId("forget-key").addEventListener("click", () => {
      keepKey("");
      this.close();
      onKey();
    });
  }

  ask() {
    this.open(readKey() === "" ? "This server asks for an API key." : "The server does not take this key.");
  }

  open(problem) {
    this.opener.hidden = false;
    byId("key-problem").textContent = problem;
    this.field.value = "";
    if (!this.dialog.open) this.dialog.showModal();
  }

  close() {
    this.field.value = "";
    this.dialog.close();
    // Chromium gives the focus back while the page still takes no input, and a text field then stays deaf.
    const focused = document.activeElement;
    focused.blur();
    requestAnimationFrame(() => focused.focus());
  }
}

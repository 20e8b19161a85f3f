// The request behind an answer: the very text that was sent, and a command that sends it again.

import { byId, copyButton, setText } from "./dom.js";

// `request()` tells `text`, `curl` and whether it was sent; null where there is none.
export function installRawView(request) {
  const dialog = byId("raw");
  let shown = null;
  byId("raw-json-head").append(copyButton(() => shown.text));
  byId("raw-curl-head").append(copyButton(() => shown.curl));
  byId("open-raw").addEventListener("click", () => {
    shown = request();
    if (shown === null) return;
    setText(byId("raw-when"), shown.isSent ? "As it was sent last." : "As it would be sent now.");
    setText(byId("raw-json"), shown.text);
    setText(byId("raw-curl"), shown.curl);
    dialog.showModal();
  });
}

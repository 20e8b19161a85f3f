// Starts the page: which view is shown, the theme, the key, the model, and how often the server is asked.

import { ApiError, getJson } from "./api.js";
import { Chat } from "./chat.js";
import { byId, element, setText } from "./dom.js";
import { KeyDialog } from "./key_dialog.js";
import { LiveView } from "./live.js";
import { installRawView } from "./raw_view.js";
import { keepTheme, readKey, readTheme } from "./storage.js";

const WATCHED_SECONDS = 1;
const UNWATCHED_SECONDS = 5;
const THEMES = ["auto", "light", "dark"];

const isEngineShown = () => location.hash === "#engine";

function showView() {
  byId("chat").hidden = isEngineShown();
  byId("engine").hidden = !isEngineShown();
  for (const link of document.querySelectorAll("nav a")) {
    if ((link.hash === "#engine") === isEngineShown()) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function installTheme() {
  const button = byId("theme");
  const show = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    setText(button, `Theme: ${theme}`);
  };
  show(readTheme());
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(readTheme()) + 1) % THEMES.length];
    keepTheme(next);
    show(next);
  });
}

// A panel beside the chat; where there is no room beside it, above it.
function installPanel(name, isOpenWhereWide) {
  const [panel, button] = [byId(name), byId(`toggle-${name}`)];
  const show = (isOpen) => {
    panel.hidden = !isOpen;
    button.setAttribute("aria-expanded", String(isOpen));
  };
  show(isOpenWhereWide && matchMedia("(min-width: 64rem)").matches);
  button.addEventListener("click", () => show(panel.hidden));
}

// A server that is started anew may have others. A choice that is the same is left alone: it may be open.
async function showModels() {
  const names = (await getJson("v1/models")).data.map(({ id }) => id);
  const select = byId("model");
  const chosen = select.value;
  if (names.join("\n") === [...select.options].map(({ value }) => value).join("\n")) return;
  select.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
  if (names.includes(chosen)) select.value = chosen;
}

// Asks the server once, and says in the header how it is. For a key it asks once for each that is wrong.
function makeWatcher(live, keyDialog) {
  let wrongKey = null;
  return async () => {
    const state = byId("engine-state");
    try {
      await showModels();
      const health = await live.refresh();
      state.className = `state ${health.state}`;
      setText(state, health.state);
      wrongKey = null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      state.className = "state down";
      setText(state, error.status === 401 ? "needs a key" : error.status ? "in trouble" : "not reachable");
      setText(byId("engine-detail"), error.message);
      if (error.status !== 401 || wrongKey === readKey()) return;
      wrongKey = readKey();
      keyDialog.ask();
    }
  };
}

function start() {
  let timer = 0;
  const keyDialog = new KeyDialog(() => turn());
  installTheme();
  installPanel("conversations", true);
  installPanel("settings", true);
  const chat = new Chat({ model: () => byId("model").value || undefined, onUnauthorized: () => keyDialog.ask() });
  installRawView(() => chat.request);
  const watch = makeWatcher(new LiveView(), keyDialog);
  // One reading after the other, however long they take; none while nobody sees the page.
  const turn = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      await watch();
    } finally {
      clearTimeout(timer);
      timer = setTimeout(turn, 1000 * (isEngineShown() ? WATCHED_SECONDS : UNWATCHED_SECONDS));
    }
  };
  document.addEventListener("visibilitychange", turn);
  window.addEventListener("hashchange", () => {
    showView();
    turn();
  });
  showView();
  turn();
  if (!matchMedia("(pointer: coarse)").matches && !isEngineShown()) byId("prompt").focus();
}

start();

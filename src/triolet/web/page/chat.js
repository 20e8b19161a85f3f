// The chat: one conversation on the screen, at most one answer under way.

import { addChunk, newAnswer } from "./answer.js";
import { CHAT_URL, streamChat } from "./api.js";
import { ConversationList } from "./conversation_list.js";
import { announce, byId, element, setText } from "./dom.js";
import { MessageView } from "./message_view.js";
import { bodyText, buildBody, curlCommand, FieldError } from "./request.js";
import { SettingsForm } from "./settings_form.js";
import * as storage from "./storage.js";

const ANNOUNCED_CHARACTERS = 1500;
const NEAR_THE_END = 80;

// `model()` is the name to ask for; `onUnauthorized` is called where a key is needed.
export class Chat {
  constructor({ model, onUnauthorized }) {
    this.model = model;
    this.onUnauthorized = onUnauthorized;
    this.controller = null;
    this.sent = null;
    this.views = [];
    this.log = byId("log");
    this.prompt = byId("prompt");
    this.form = new SettingsForm(byId("settings-fields"), (settings) => {
      this.conversation.settings = settings;
      if (this.conversation.messages.length) this.keep();
    });
    this.list = new ConversationList(byId("conversation-list"), {
      onOpen: (id) => this.open(id),
      onForget: (id) => this.forget(id),
    });
    this.listen();
    this.conversations = storage.readConversations();
    this.show(this.conversations[0] ?? storage.newConversation());
  }

  get isAnswering() {
    return this.controller !== null;
  }

  listen() {
    byId("new-conversation").addEventListener("click", () => this.begin());
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.isAnswering) this.stop();
      else this.send();
    });
    this.prompt.addEventListener("keydown", (event) => this.onKey(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isAnswering && !document.querySelector("dialog[open]")) this.stop();
    });
    window.addEventListener("storage", ({ key }) => {
      if (storage.isConversationKey(key)) this.refreshList();
    });
  }

  // Enter sends where there is a keyboard; with Shift, and on a phone, it is a new line. With Ctrl it always sends.
  onKey(event) {
    if (event.key !== "Enter" || event.isComposing || event.shiftKey) return;
    const isForced = event.ctrlKey || event.metaKey;
    if (!isForced && matchMedia("(pointer: coarse)").matches) return;
    event.preventDefault();
    if (!this.isAnswering) this.send();
  }

  // ---- conversations

  begin() {
    this.stop();
    this.show(storage.newConversation({ ...this.conversation.settings }));
    this.prompt.focus();
  }

  open(id) {
    const found = this.conversations.find((one) => one.id === id);
    if (!found || id === this.conversation.id) return;
    this.stop();
    this.show(found);
  }

  forget(id) {
    if (id === this.conversation.id) this.stop();
    storage.forgetConversation(id);
    this.conversations = this.conversations.filter((one) => one.id !== id);
    if (id === this.conversation.id) this.show(this.conversations[0] ?? storage.newConversation());
    else this.refreshList();
    byId("new-conversation").focus();
  }

  show(conversation) {
    this.conversation = conversation;
    this.sent = null;
    this.form.show(conversation.settings);
    this.showMessages();
    this.refreshList();
    this.tell("");
    this.log.scrollTop = this.log.scrollHeight;
  }

  keep(conversation = this.conversation) {
    if (!storage.keepConversation(conversation)) {
      this.tell("The browser has no room for this conversation: it is gone when the tab is closed.");
    }
    this.refreshList();
  }

  // What other tabs have kept is seen here too; what is on the screen stays as it is here.
  refreshList() {
    const kept = storage.readConversations().filter((one) => one.id !== this.conversation.id);
    const isKept = this.conversation.messages.length > 0;
    this.conversations = [...(isKept ? [this.conversation] : []), ...kept];
    this.conversations.sort((one, other) => other.changed - one.changed);
    this.list.show(this.conversations, this.conversation.id);
  }

  // ---- messages

  showMessages() {
    const { messages } = this.conversation;
    this.views = messages.map((message, index) => this.view(message, index));
    byId("welcome").hidden = messages.length > 0;
    this.log.replaceChildren(...this.views.map((view) => view.root));
    this.settle();
  }

  view(message, index) {
    return new MessageView(message, {
      edit: (text) => this.askFrom(index, { role: "user", content: text }),
      regenerate: () => this.askFrom(index),
      giveResults: (results) => this.giveResults(message, results),
    });
  }

  settle() {
    this.views.forEach((view, index) => view.update({ isLast: index === this.views.length - 1 }));
  }

  send() {
    const text = this.prompt.value;
    if (!text.trim()) return;
    this.askFrom(this.conversation.messages.length, { role: "user", content: text });
    if (this.isAnswering) this.prompt.value = "";
  }

  // Forget the messages from `index` on, add the new ones, and ask for an answer.
  askFrom(index, ...added) {
    if (this.isAnswering) return;
    const { messages } = this.conversation;
    const before = [...messages];
    messages.splice(index, messages.length, ...added);
    const text = this.requestText();
    if (text === null) messages.splice(0, messages.length, ...before);
    else this.ask(text);
  }

  giveResults(message, results) {
    const answers = message.tool_calls.map((call, index) => ({
      role: "tool", name: call.function.name, tool_call_id: call.id, content: results[index],
    }));
    this.askFrom(this.conversation.messages.length, ...answers);
  }

  // ---- the request

  // The text of the next request; null where a setting is wrong, which is told.
  requestText() {
    try {
      return bodyText(buildBody(this.conversation, this.model()));
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      this.tell(error.message);
      return null;
    }
  }

  // What was sent last in this conversation, or else what would be.
  get request() {
    const text = this.sent ?? this.requestText();
    const hasKey = storage.readKey() !== "";
    return text === null ? null : { text, curl: curlCommand(CHAT_URL, text, hasKey), isSent: this.sent !== null };
  }

  async ask(text) {
    const answer = newAnswer();
    const { conversation } = this;
    conversation.messages.push(answer);
    this.controller = new AbortController();
    this.sent = text;
    this.showMessages();
    this.showBusy();
    this.tell("");
    this.keep();
    this.log.scrollTop = this.log.scrollHeight;
    announce("The model is answering.");
    await this.receive(answer, this.views.at(-1), text);
    this.controller = null;
    if (conversation === this.conversation) {
      this.settle();
      announce(`${answer.error ?? ""} ${answer.content.slice(0, ANNOUNCED_CHARACTERS)}`);
    }
    // One that is no longer on the screen may have been forgotten meanwhile.
    if (this.conversations.some((one) => one.id === conversation.id)) this.keep(conversation);
    this.showBusy();
  }

  async receive(answer, view, text) {
    const began = performance.now();
    const elapsed = () => (performance.now() - began) / 1000;
    const paint = this.painter(view);
    paint();
    try {
      for await (const chunk of streamChat(text, this.controller.signal)) {
        addChunk(answer, chunk, elapsed());
        paint();
      }
    } catch (error) {
      if (error.name === "AbortError") answer.stopped = true;
      else answer.error = error.message;
      if (error.status === 401) this.onUnauthorized();
    }
    answer.seconds = elapsed();
  }

  // Draws at most once a frame, and keeps the end in sight for a reader who is there.
  painter(view) {
    let isDue = false;
    return () => {
      if (isDue) return;
      isDue = true;
      requestAnimationFrame(() => {
        isDue = false;
        if (!this.isAnswering || !view.root.isConnected) return;
        const { scrollTop, scrollHeight, clientHeight } = this.log;
        const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_THE_END;
        view.update({ isGrowing: true });
        if (isAtEnd) this.log.scrollTop = this.log.scrollHeight;
      });
    };
  }

  stop() {
    this.controller?.abort();
  }

  showBusy() {
    const button = byId("send");
    setText(button, this.isAnswering ? "Stop" : "Send");
    button.classList.toggle("stop", this.isAnswering);
  }

  tell(problem) {
    byId("chat-problem").replaceChildren(...(problem ? [element("p", { textContent: problem })] : []));
  }
}

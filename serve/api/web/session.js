// What the page's modules share: the mode, the open conversation, and the request that runs.

import { Conversations } from "./chats/store.js";
import { newConversation } from "./chats/tree.js";
import { $ } from "./dom.js";
import { Transcript } from "./text/transcript.js";

export const store = new Conversations();
export const transcript = new Transcript($("output"));

export const session = {
  mode: "chat", // or "completion"
  chat: newConversation(),
  running: null, // {controller, keep, chat} of the running request
  isLeaving: false, // the page is being left, which ends a running request
  isStale: false, // another tab has changed conversations
};

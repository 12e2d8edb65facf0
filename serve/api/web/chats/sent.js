// A turn as the server gets it.

// A fence that the text does not hold.
function fenceFor(text) {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), ([run]) => run.length));
  return "`".repeat(longest + 1);
}

// A message of OpenAI's form. Attached files stand before what was written, each under its name.
export function asSent({ role, content, files, tool_calls, tool_call_id }) {
  const blocks = (files ?? []).map(({ name, text }) => {
    const fence = fenceFor(text);
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  const message = { role, content: [...blocks, content].filter(Boolean).join("\n\n") };
  if (tool_calls) message.tool_calls = tool_calls;
  if (tool_call_id) message.tool_call_id = tool_call_id;
  return message;
}

// Server-sent events out of a stream of bytes, as the HTML standard has them, as far as the server uses it.

// The data of each event. Comments and other fields are left out. Events may be cut anywhere into pieces.
export async function* readEvents(bytes) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.map((one) => one.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        else if (line === "" && data.length) {
          const event = data.join("\n");
          data = [];
          yield event;
        }
      }
    }
  } finally {
    // Left early or not: the server is told that nobody listens any more. A stream that failed is over already.
    reader.cancel().catch(() => {});
  }
}

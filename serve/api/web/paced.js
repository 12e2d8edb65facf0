// Drawing that leaves the page to the person: a model may send tokens faster than the browser lays a long text out.

const PAUSES = 2; // how many times as long as a drawing the page is free afterwards
const LONGEST_MS = 300; // a pause that nobody takes for the end

const frame = () => new Promise((go) => requestAnimationFrame(go));
const pause = (ms) => new Promise((go) => setTimeout(go, ms));

// `ask()` has `draw()` called before a later frame, once however often it was asked; `end()` takes that back.
export function paced(draw) {
  let isAsked = false;
  let isRunning = false;
  const run = async () => {
    isRunning = true;
    for (;;) {
      await frame();
      if (!isAsked) break;
      isAsked = false;
      const began = performance.now();
      draw();
      await pause(0); // the browser has laid out and painted
      await pause(Math.min(PAUSES * (performance.now() - began), LONGEST_MS));
      if (!isAsked) break;
    }
    isRunning = false;
  };
  return {
    ask() {
      isAsked = true;
      if (!isRunning) run();
    },
    end() {
      isAsked = false;
    },
  };
}

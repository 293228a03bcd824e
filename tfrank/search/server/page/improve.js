// Lets the search learn from the groups: a button, what is going on, and the way back.
import { key } from "./labels.js";
import { make } from "./results.js";
import { talk } from "./server.js";

const SECONDS = 2;

export function improvement() {
  const said = make("p", { className: "quiet" }), row = make("div", { className: "row" });
  said.setAttribute("role", "status");
  const place = make("section", { className: "part", id: "improve" }, make("h2", { textContent: "Improve the search" }),
    make("p", { className: "quiet", textContent: "A new model learns from the groups. It is used if it finds photos of groups that it has not learnt better. It takes minutes; the search goes on." }), row, said);
  let running = false;
  // What left the page needs no further look.
  const later = () => setTimeout(() => place.isConnected && talked(), 1000 * SECONDS);
  const talked = async options => {
    try {
      show(await talk("v1/improve", options));
    } catch (error) {
      said.textContent = error.message;
      // It goes on while a network or a laptop sleeps.
      if (running) later();
    }
  };
  const start = (words, back) => {
    const button = make("button", { type: "button", textContent: words, className: back ? "plain" : "main" });
    const headers = { ...key(), "Content-Type": "application/json" };
    button.addEventListener("click", () => talked({ method: "POST", headers, body: JSON.stringify({ back }) }));
    return button;
  };
  function show({ state, lines, may_go_back }) {
    running = state === "running";
    row.replaceChildren(...running ? [] : [start("Learn from the groups", false), ...may_go_back ? [start("Back to the model before", true)] : []]);
    said.textContent = running ? lines.at(-1) || "It begins." : lines.join(" ");
    if (running) later();
  }
  talked();
  return place;
}

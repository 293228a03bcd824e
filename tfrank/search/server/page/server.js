// Talks to the server. Errors are one sentence, with the status if the server said it.

export async function talk(path, options = {}) {
  let response, answer;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it running?");
  }
  try {
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`The server's answer cannot be read (status ${response.status}). Try again.`);
  }
  if (!response.ok) throw Object.assign(new Error(answer.error), { status: response.status, unknown: answer.unknown });
  return answer;
}

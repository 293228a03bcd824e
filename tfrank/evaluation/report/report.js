// Enlarges a picture where it is clicked, or Enter is pressed on it; Escape or a click closes it.
const dialog = document.querySelector("dialog"), words = dialog.querySelector("p"), large = new Image();
document.documentElement.className = "enlarges";
document.addEventListener("click", event => {
  const frame = event.target.closest("button.frame");
  if (frame) {
    const small = frame.querySelector("img");
    large.src = small.src;
    large.alt = small.alt;
    large.className = small.className;
    words.textContent = [frame.title, small.alt].filter(Boolean).join(" · ");
    dialog.prepend(large);
    dialog.showModal();
  } else if (dialog.open) {
    dialog.close();
  }
});

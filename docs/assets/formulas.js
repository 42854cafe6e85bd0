// Draws what arithmatex marked: \(...\) in a span, \[...\] in a div.
document$.subscribe(({ body }) => {
  for (const element of body.querySelectorAll(".arithmatex")) {
    const formula = element.textContent.trim().slice(2, -2);
    katex.render(formula, element, { displayMode: element.tagName === "DIV", throwOnError: false });
  }
});

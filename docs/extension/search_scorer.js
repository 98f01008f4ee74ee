// The order of the results of a search: many pages have the same score, and the names of pages would decide.
var Scorer = {
  // The values of Sphinx.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  // Among equals, the pages that most readers look for come first. Parameters of functions and reports come last.
  first: { "docs/errors": 0.9, "docs/start": 0.6, "docs/how_dlpack_works": 0.3 },
  score: ([docname, title, anchor, descr, score]) => {
    const isLast = (descr || "").includes("function parameter") || docname.startsWith("docs/upstream/");
    return score + (Scorer.first[docname] || 0) - (isLast ? 12 : 0);
  },
};

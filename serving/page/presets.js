// Prompts to start from. The first four are those of Figure 4 of the announcement of Megatron-Turing NLG 530B; the
// others are new, one for each further kind of task that it was evaluated on.

const ARITHMETIC = { temperature: 0, max_tokens: 16, stop: ["\nQ:"] };
const SENTENCES = { temperature: 0, max_tokens: 40 };

export const FIGURE_4 = [
  {
    title: "# divides",
    prompt:
      "Q: 11 # 2 = ?\nA: 5.5\nQ: 18 # 9 = ?\nA: 2\nQ: 35 # 4 = ?\nA: 8.75\nQ: 27 # 9 = ?\nA: 3\n" +
      "Q: 75 # 6 = ?\nA:",
    note: "The sign # stands for division, which only the examples tell. 12.5 is right.",
    settings: ARITHMETIC,
  },
  {
    title: "$^% multiplies",
    prompt:
      "Q: 11 $^% 2 = ?\nA: 22\nQ: 3 $^% 9 = ?\nA: 27\nQ: 12 $^% 4 = ?\nA: 48\nQ: 7 $^% 7 = ?\nA: 49\n" +
      "Q: 8 $^% 5 = ?\nA:",
    note: "An operator that no text uses; the examples multiply. 40 is right.",
    settings: ARITHMETIC,
  },
  {
    title: "HANS: the banker",
    prompt:
      "The banker forgot that the judge advised the professors.\n" +
      "Question: The judge advised the professors. True or False?\n\n",
    note: "What one forgets is a fact. MT-NLG: “True. The banker forgot that the judge advised the professors.”",
    settings: SENTENCES,
  },
  {
    title: "HANS: the professors",
    prompt:
      "Famous professors supported the secretary.\nQuestion: Professors supported the secretary. True or False?\n\n",
    note: "Famous professors are professors. MT-NLG: “True. The secretary was supported by famous professors.”",
    settings: SENTENCES,
  },
];

export const TASKS = [
  {
    title: "Last word",
    prompt:
      "Every evening Nora wound the clock in the hall before she went upstairs. Tonight the stairs were silent, no " +
      "ticking followed her, and halfway up she turned round: she had forgotten to wind the",
    note: "As in LAMBADA: the last word follows from the whole passage, not from its last sentence.",
    settings: { temperature: 0, max_tokens: 3 },
  },
  {
    title: "Reading",
    prompt:
      "Each copy of the model with 530 billion parameters is spread over 280 GPUs: tensors are cut into 8 slices " +
      "within a machine, and the layers into 35 stages across machines.\n" +
      "Question: Does one copy of the model fit on a single GPU?\nAnswer:",
    note: "As in BoolQ: yes or no, from the passage.",
    settings: { temperature: 0, max_tokens: 3 },
  },
  {
    title: "Common sense",
    prompt: "Question: How do you keep soup warm until the guests arrive?\nAnswer:",
    note: "As in PIQA: what works in the physical world.",
    settings: { temperature: 0, max_tokens: 32, stop: ["\n"] },
  },
  {
    title: "Who is meant",
    prompt: "The trophy did not fit into the suitcase because the trophy was too big, so Ada bought another",
    note: "As in WinoGrande: which of two things a sentence goes on about.",
    settings: { temperature: 0, max_tokens: 5 },
  },
  {
    title: "Word sense",
    prompt:
      "Sentence 1: They sat on the bank and watched the boats.\nSentence 2: The bank raised its interest rates.\n" +
      "Question: Does the word “bank” mean the same in both sentences?\nAnswer:",
    note: "As in WiC: yes or no. No is right.",
    settings: { temperature: 0, max_tokens: 3 },
  },
  {
    title: "A story",
    prompt: "Once upon a time, in a village below the mountains,",
    note: "No right answer: try other temperatures side by side.",
    settings: { temperature: 0.8, max_tokens: 128 },
  },
];

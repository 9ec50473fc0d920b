export interface DemoTask {
  question: string
  answer: number
}

/**
 * What the demo's agent is asked. The embedded engine has a tool loop for sums; what it has none for, it babbles at.
 */
export const TASKS: readonly DemoTask[] = [
  { question: 'What is 12 * 34?', answer: 408 },
  { question: 'Compute (12 + 7) * 3 step by step.', answer: 57 },
  { question: 'What is 144 divided by 12?', answer: 12 },
  { question: 'Compute 100 - (8 * 9), please.', answer: 28 },
  { question: 'How much is 7 plus 8?', answer: 15 },
  { question: 'Which number, squared, gives eighty-one?', answer: 9 },
  { question: 'What is 2.5 * 4?', answer: 10 },
  { question: 'Compute (81 / 9) - 4 and tell me the result.', answer: 5 },
]

/**
 * The demo's agent: a separate process that is not specific to llm-proxy. It receives a question, sends requests to
 * `OPENAI_BASE_URL` with the openai package, runs the calculator when the model calls it, and prints the answer.
 */
import OpenAI from 'openai'
import type { ChatCompletionMessageParam, ChatCompletionTool } from 'openai/resources/chat/completions'
import { toPrintable } from '../table.ts'

const MAX_TURNS = 8

const CALCULATOR: ChatCompletionTool = {
  type: 'function',
  function: {
    name: 'calculator',
    description: 'Evaluates an arithmetic expression.',
    parameters: {
      type: 'object',
      properties: { expression: { type: 'string', description: 'For example 3 * (4 + 5)' } },
      required: ['expression'],
    },
  },
}

function runCalculator(argumentsText: string): string {
  try {
    return String(calculate(JSON.parse(argumentsText).expression))
  } catch (error) {
    return `error: ${(error as Error).message}`
  }
}

/** Answers a question by LLM requests and calculations. @param onCalculation called with a line for each calculation */
async function answerQuestion(question: string, onCalculation: (line: string) => void): Promise<string> {
  const openai = new OpenAI()
  const messages: ChatCompletionMessageParam[] = [
    { role: 'system', content: 'You are a careful assistant. Use the calculator for every step.' },
    { role: 'user', content: question },
  ]
  for (let turn = 0; turn < MAX_TURNS; turn++) {
    const stream = openai.chat.completions.stream({
      model: 'demo',
      messages,
      tools: [CALCULATOR],
      temperature: 0.8,
      max_tokens: 60,
    })
    const { message } = (await stream.finalChatCompletion()).choices[0]!
    messages.push(message)
    if (!message.tool_calls?.length) return message.content ?? ''
    for (const call of message.tool_calls) {
      if (call.type !== 'function') continue
      const content = runCalculator(call.function.arguments)
      onCalculation(`${call.function.arguments} gives ${content}`)
      messages.push({ role: 'tool', tool_call_id: call.id, content })
    }
  }
  return ''
}

/**
 * Runs `llm-proxy demo-agent`: prints a line for each calculation, and the answer last.
 * @param question default: `TASK_PROMPT`
 * @returns the exit code
 */
export async function run(question = process.env.TASK_PROMPT ?? ''): Promise<number> {
  const print = (text: string) => process.stdout.write(`${toPrintable(text.replaceAll(/\s+/g, ' '))}\n`)
  print(await answerQuestion(question, print))
  return 0
}

/**
 * Evaluates an arithmetic expression: numbers, + - * / and brackets, with the usual precedence.
 * @throws Error that describes the error in the expression
 */
function calculate(expression: string): number {
  const tokens = expression.match(/\d+(?:\.\d+)?|[-+*/()]|\S/g) ?? []
  let index = 0

  function sum(): number {
    let value = product()
    while (tokens[index] === '+' || tokens[index] === '-')
      value = tokens[index++] === '+' ? value + product() : value - product()
    return value
  }

  function product(): number {
    let value = factor()
    while (tokens[index] === '*' || tokens[index] === '/')
      value = tokens[index++] === '*' ? value * factor() : value / factor()
    return value
  }

  function factor(): number {
    const token = tokens[index++]
    if (token === '-') return -factor()
    if (token === '(') {
      const value = sum()
      if (tokens[index++] !== ')') throw new Error('a bracket is not closed')
      return value
    }
    if (token === undefined || !/^\d/.test(token))
      throw new Error(`a number was expected, not ${token ?? 'the end'}`)
    return Number(token)
  }

  const value = sum()
  if (index < tokens.length) throw new Error(`the end was expected, not ${tokens[index]}`)
  return value
}

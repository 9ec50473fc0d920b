/** Responses of every form, for libraries that validate their conversion into each dialect. */
import type { GenerationEvent } from '../../src/protocol/canonical/events.ts'
import type { ToolCallDelta } from '../../src/protocol/canonical/messages.ts'
import { completeResponse } from './scripted-backend.ts'

const [start, , , end] = completeResponse() as [
  GenerationEvent,
  GenerationEvent,
  GenerationEvent,
  GenerationEvent,
]
const ended = (finishReason: string) => ({ ...end, finishReason }) as GenerationEvent
const toolCall = (index: number, id: string, city: string): ToolCallDelta => ({
  index,
  id,
  type: 'function',
  function: { name: 'weather', arguments: JSON.stringify({ city }) },
})

export const SAMPLE_RESPONSES: Record<string, GenerationEvent[]> = {
  text: completeResponse(),
  'text that is cut': [start, { type: 'delta', content: 'half a' }, ended('length')],
  nothing: [start, end],
  'reasoning and text': [start, { type: 'delta', reasoning: 'Hm.' }, { type: 'delta', content: 'Yes.' }, end],
  'a tool call': [start, { type: 'delta', toolCalls: [toolCall(0, 'call_1', 'Rome')] }, ended('tool_calls')],
  'reasoning, text and two tool calls': [
    start,
    { type: 'delta', reasoning: 'Hm.' },
    { type: 'delta', content: 'I look.' },
    { type: 'delta', toolCalls: [toolCall(0, 'call_1', 'Rome')] },
    { type: 'delta', toolCalls: [toolCall(1, 'call_2', 'Paris')] },
    ended('tool_calls'),
  ],
  'a response without usage': [
    start,
    { type: 'delta', content: 'hi' },
    { type: 'end', finishReason: 'stop' },
  ],
}

/** A parser reads what its model's own template writes. */
import fc from 'fast-check'
import t from 'tap'
import type { ChatMessage, Tool } from '../../../../src/protocol/canonical/messages.ts'
import { chooseParser } from '../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { StreamingDecoder } from '../../../../src/proxy/tokens/tokenizer/streaming-decoder.ts'
import { parseComplete } from '../../../helpers/parsed-output.ts'
import { loadTemplate } from '../../../helpers/templates.ts'
import { loadRealTokenizer, modelDirectory } from '../../../unit/proxy/tokens/real-models.ts'

const tools: Tool[] = [{ type: 'function', function: { name: 'f', parameters: { type: 'object' } } }]
const USER: ChatMessage = { role: 'user', content: 'Hi' }

/** No numbers, because JavaScript writes some of them differently from Python. No keys that JavaScript would sort. */
const argumentsObject = fc.dictionary(
  fc.string({ unit: 'grapheme' }).filter((key) => !/^\d+$/.test(key) && key !== '__proto__'),
  fc.oneof(fc.string({ unit: 'grapheme' }), fc.boolean(), fc.constant(null), fc.array(fc.string())),
)
const content = fc.string({ unit: 'grapheme' }).map((text) => text.replaceAll(/[<{]/g, '').trim())

for (const { model, callCount } of [
  { model: 'qwen2_5', callCount: 3 },
  { model: 'qwen3', callCount: 3 },
  { model: 'llama3_2', callCount: 1 },
  { model: 'deepseek_v3', callCount: 3 },
]) {
  const { template, source } = loadTemplate(modelDirectory(model))
  const tokenizer = loadRealTokenizer(model)
  const { family } = chooseParser(source)

  /** Qwen's tokenizers normalize. */
  const asRead = (text: string) => (model.startsWith('qwen') ? text.normalize('NFC') : text)

  /** Returns what the model would write for `message`, and what an agent would receive. */
  function writeAndParse(message: ChatMessage) {
    const prompt = template.render([USER], { tools })
    const full = template.render([USER, message], { tools, addGenerationPrompt: false })
    if (!full.startsWith(prompt)) throw new Error('the prompt is not a prefix of the conversation')
    const ids = tokenizer.encode(full.slice(prompt.length))
    const decoder = new StreamingDecoder(tokenizer, {
      skipSpecialTokens: true,
      keepTokens: family.keepTokens,
    })
    return parseComplete(family.create({ tools }), decoder.push(ids) + decoder.flush())
  }

  t.test(`${model}: calls are read as they were written`, async () => {
    const calls = fc.array(argumentsObject, { minLength: 1, maxLength: callCount })
    fc.assert(
      fc.property(calls, (all) => {
        const toolCalls = all.map((args, index) => ({
          id: `c${index}`,
          type: 'function' as const,
          function: { name: `f${index}`, arguments: JSON.stringify(args) },
        }))
        const parsed = writeAndParse({ role: 'assistant', content: null, tool_calls: toolCalls })
        const back = parsed.toolCalls.map((call) => [
          call.function.name,
          JSON.stringify(JSON.parse(call.function.arguments)),
        ])
        const expected = toolCalls.map((call) => [call.function.name, asRead(call.function.arguments)])
        return parsed.content === '' && JSON.stringify(back) === JSON.stringify(expected)
      }),
    )
  })

  t.test(`${model}: text is read as it was written`, async () => {
    fc.assert(
      fc.property(content, (text) => {
        const parsed = writeAndParse({ role: 'assistant', content: text })
        return parsed.content.trim() === asRead(text).trim() && parsed.toolCalls.length === 0
      }),
    )
  })
}

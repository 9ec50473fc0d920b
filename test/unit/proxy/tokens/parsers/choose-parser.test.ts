import { readFileSync } from 'node:fs'
import t from 'tap'
import {
  chooseParser,
  endsWithReasoningOpener,
  findParser,
  PARSER_FAMILIES,
  plain,
} from '../../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { hermes } from '../../../../../src/proxy/tokens/parsers/json-families.ts'
import { readModelConfig } from '../real-models.ts'
import { parseBriefly } from './parse.ts'

t.test("a model's template determines the markup of its completions", async (t) => {
  const expected = {
    qwen2_5: 'hermes',
    qwen3: 'hermes',
    llama3_1: 'llama3_json',
    llama3_2: 'llama3_json',
    deepseek_v3: 'deepseek_v3',
    gemma3: 'plain',
  }
  for (const [model, name] of Object.entries(expected)) {
    t.equal(chooseParser(String(readModelConfig(model).chat_template)).family.name, name, model)
  }
})

t.test('templates of other families are distinguished by their unique texts', async (t) => {
  const templates = {
    qwen3_coder: '<tool_call>\n<function=example>\n<parameter=x>',
    mimo: 'You are MiMo <tool_call>\n<function=example>\n<parameter=x>',
    glm45: '<tool_call>{function-name}\n<arg_key>',
    kimi_k2: '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>',
    seed_oss: '<seed:tool_call>\n<function=example>',
    minimax_m2: '<minimax:tool_call>\n<invoke name="tool">',
    deepseek_v32: '<｜DSML｜function_calls>',
    hy_v3_opensource: "{%- set HYTK = ':opensource' %}<tool_sep{}><arg_key{}>",
    hy_v3: '<tool_calls><tool_call>f<tool_sep><arg_key>',
    hy_v4: '<tool_calls:6124c78e><tool_call:6124c78e>f<arg_key:6124c78e>',
    cohere_command: '<|START_ACTION|>[{"tool_name": "f"}]<|END_ACTION|>',
    apertus: '<|tools_prefix|>',
    lfm2: '<|tool_call_start|>',
    nemotron_json: '<TOOLCALL>',
    phi4_mini_json: '<|tool|>{{ tools }}<|/tool|>',
    granite: 'respond only with <|tool_call|> followed by a JSON list of tools',
    hermes: '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
    mistral: '[TOOL_CALLS] [',
    harmony: '<|start|>assistant<|channel|>final<|message|>',
    deepseek_v4: "'<｜DSML｜' + 'tool_calls>'",
    deepseek_v41:
      'dsml_token = "｜DSML｜"\nSYSTEM_SP_TOKEN = "<｜System｜>"\ntool_calls_block_name = " calls"',
    kimi_k3: "open_tag('tools') open_tag('call', [])",
    minimax_m1: '<tool_calls>\\n{"name": <tool-name>',
    minimax_m3: ']<]minimax[>[ <invoke name=',
    gemma4: '<|tool_call>call:{{ name }} <|"|>',
    muse_glimmer: '<atem:invoke name="',
    solar_open: '<|tool_call:name|><|tool_call:args|>',
    gigachat3: 'function call<|role_sep|>',
    minicpm5: '<function name="f"><param name="a">',
    apriel: '[BEGIN FINAL RESPONSE]<tool_calls>[',
    command_r_plus: "Write \\'Action:\\' ```json",
    step3: '<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="',
    dots: '<dots_function_call>\n<invoke name="search">',
    longcat: '<longcat_tool_call>\n{"name": <function-name>, "arguments": <args-dict>}\n</longcat_tool_call>',
    internlm: '<|action_start|><|plugin|>',
    olmo3: 'You do not currently have access to any functions. <functions></functions><function_calls>',
    llama4_pythonic: '<|python_start|> in the format of [func_name1(params_name1=params_value1)]',
    pythonic: 'in the format of [func_name1(params_name1=params_value1)]',
    ernie45: '<response>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    xlam: 'You are developed by Salesforce xLAM team.',
    functionary_v3_1: 'start_tag => `<function`',
    functionary_v3_2: '>>>all',
  }
  for (const [name, text] of Object.entries(templates)) {
    const { family, evidence, warning } = chooseParser(text)
    t.equal(family.name, name)
    t.ok(evidence.length > 0, 'it reports its evidence')
    t.equal(warning, undefined)
  }
})

t.test(
  'a template with tools in an unknown format causes a warning, and one without tools does not',
  async (t) => {
    for (const unknown of [
      '{% for tool in tools %}>>>{{ tool.name }}',
      '<|start_header_id|>{{ tools }}<function=',
    ]) {
      const { family, warning } = chooseParser(unknown)
      t.equal(family.name, 'plain')
      t.match(warning, /--tool-parser/)
    }
    t.match(chooseParser('{{ messages }}'), {
      family: { name: 'plain' },
      evidence: { length: 0 },
      warning: undefined,
    })
  },
)

t.test('docs/token-mode.md lists all families, and no other', async (t) => {
  const page = readFileSync(new URL('../../../../../docs/token-mode.md', import.meta.url), 'utf8')
  const table = page.slice(page.indexOf('| parser | models |')).split('\n\n')[0]!
  const listed = table.split('\n').flatMap((row) => row.split('|')[1]?.match(/(?<=`)[a-z0-9_]+(?=`)/g) ?? [])
  t.same(listed.toSorted(), [...PARSER_FAMILIES.keys()].toSorted())
})

t.test('the family can be set', async (t) => {
  for (const [name, family] of PARSER_FAMILIES) t.equal(findParser(name), family)
  t.throws(() => findParser('nonsense'), { code: 'config_invalid', message: /nonsense.*hermes/ })
})

t.test('a prompt may end inside reasoning', async (t) => {
  t.ok(endsWithReasoningOpener(hermes, '<|im_start|>assistant\n<think>\n'))
  t.notOk(endsWithReasoningOpener(hermes, '<|im_start|>assistant\n<think>\n\n</think>\n\n'))
  t.notOk(endsWithReasoningOpener(findParser('llama3_json'), '<think>'))
})

t.test('a model without tools in its template writes content and reasoning only', async (t) => {
  const text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
  t.same(parseBriefly(plain, `<think>hm</think>${text}`), { reasoning: 'hm', content: text })
})

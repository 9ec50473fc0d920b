/** What each family's calls begin with, up to where a string or a value has begun. */
export const BEGUN: Record<string, readonly string[]> = {
  hermes: ['<tool_call>{"name": "f", "arguments": {"a": "'],
  qwen3_coder: ['<function=f>\n<parameter=a>\n', '<function=f>'],
  glm45: ['<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>', '<tool_call>f\n<arg_key>a'],
  mistral: ['[TOOL_CALLS]f{"a": "', '[TOOL_CALLS][{"name": "f", "arguments": {"a": "', '[TOOL_CALLS]f'],
  kimi_k2: ['<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "', '<|tool_call_begin|>'],
  deepseek_v3: [
    '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": "',
    '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": "',
  ],
  deepseek_v31: ['<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": "'],
  llama3_json: ['{"name": "f", "parameters": {"a": "', '<|python_tag|>'],
  harmony: ['<|channel|>commentary to=functions.f<|message|>{"a": "', '<|channel|>analysis<|message|>'],
  plain: ['<think>'],
  granite: ['<|tool_call|>[{"name": "f", "arguments": {"a": "', '<|tool_call|>[{}, '],
  phi4_mini_json: ['functools[{"name": "f", "arguments": {"a": "', 'functools'],
  hunyuan_a13b: ['<tool_calls>[{"name": "f", "arguments": {"a": "', '<think>x</think><answer>'],
  nemotron_json: ['<TOOLCALL>[{"name": "f", "arguments": {"a": "'],
  cohere_command: ['<|START_ACTION|>[{"tool_name": "f", "parameters": {"a": "', '<|START_RESPONSE|>'],
  apertus: ['<|tools_prefix|>[{"f": {"a": "', '<|tools_prefix|>[{"f": {}}, '],
  seed_oss: ['<function=f>\n<parameter=a>\n', '<seed:tool_call><function=f>'],
  minimax_m2: ['<invoke name="f"><parameter name="a">', '<minimax:tool_call><invoke name="'],
  deepseek_v32: [
    '<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">',
    '<｜DSML｜invoke name="',
  ],
  hy_v3: ['<tool_call>f<tool_sep><arg_key>a</arg_key>\n<arg_value>', '<tool_call>f<tool_sep><arg_key>a'],
  hy_v3_opensource: [
    '<tool_call:opensource>f<arg_key:opensource>a</arg_key:opensource><arg_value:opensource>',
  ],
  lfm2: ['<|tool_call_start|>[f(a="', '<|tool_call_start|>[f(', '<|tool_call_start|>[{"name": "'],
}

// Asks by one function of Vercel's AI SDK and prints what came of it as JSON. Arguments: folder of the packages, address, model, API, function.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [packages, url, model, api, call] = process.argv.slice(2);
const require = createRequire(`${packages}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)));

const { generateText, generateObject, streamText, stepCountIs, tool } = await load("ai");
const { z } = await load("zod");

const PROVIDERS = {
  chat: async () => (await load("@ai-sdk/openai")).createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" }).chat(model),
  responses: async () => (await load("@ai-sdk/openai")).createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" }).responses(model),
  messages: async () => (await load("@ai-sdk/anthropic")).createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })(model),
  compatible: async () => (await load("@ai-sdk/openai-compatible")).createOpenAICompatible({ name: "hmas", baseURL: `${url}/v1` })(model),
};

const asked = {
  model: await PROVIDERS[api](),
  system: "You are terse.",
  messages: [
    { role: "user", content: "Name a colour." },
    { role: "assistant", content: "Red." },
    { role: "user", content: "Name three more." },
  ],
  temperature: 0,
  maxOutputTokens: 24,
  maxRetries: 0,
};

const CALLS = {
  text: async () => {
    const { text, usage, finishReason } = await generateText(asked);
    return { text, output: usage.outputTokens, finishReason };
  },
  stream: async () => {
    let text = "";
    let failed = null;
    const result = streamText({ ...asked, onError: ({ error }) => (failed = error) });
    for await (const piece of result.textStream) text += piece;
    if (failed) throw failed;
    const usage = await result.usage;
    return { text, output: usage.outputTokens, finishReason: await result.finishReason };
  },
  tool: async () => {
    const weather = tool({ description: "The weather of a city.", inputSchema: z.object({ city: z.string() }), execute: async () => "rain" });
    const { steps } = await generateText({ ...asked, maxOutputTokens: 200, tools: { weather }, toolChoice: "required", stopWhen: stepCountIs(1) });
    return { tools: steps[0].toolCalls.map((made) => made.toolName), results: steps[0].toolResults.length };
  },
  object: async () => {
    const schema = z.object({ name: z.string().max(10) });
    const { object } = await generateObject({ ...asked, maxOutputTokens: 200, schema });
    return { keys: Object.keys(object) };
  },
  unknown: async () => generateText({ ...asked, model: await unknownModel() }),
};

async function unknownModel() {
  const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
  return createOpenAICompatible({ name: "hmas", baseURL: `${url}/v1` })("no-such-model");
}

try {
  console.log(JSON.stringify(await CALLS[call]()));
} catch (error) {
  console.log(JSON.stringify({ raised: error.name, status: error.statusCode ?? null, retryable: error.isRetryable ?? null }));
}

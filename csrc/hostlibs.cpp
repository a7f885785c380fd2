// The functions of cuBLASLt and cuDNN that cuda/library.c uses, for tests, on the processor. The file is built as
// both libraries. Descriptors hold the attributes that were set. The host driver (hostgpu.cpp) runs the work, so it
// is captured and replayed like other commands.
//
// The functions refuse what the real libraries refuse: unknown attributes, a bias without an activation in all
// algorithms but one, and a workspace that is too small. They overwrite the workspace.
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hostgpu.h"

namespace {

enum { OK = 0, BLAS_INVALID = 7, DNN_BAD_PARAM = 3, FLOAT32 = 0, FLOAT16 = 2, BFLOAT16 = 14, DNN_BFLOAT16 = 9 };

int enqueue(void (*f)(const void *), const void *params, size_t n) {
	static auto call = (int (*)(void (*)(const void *), const void *, size_t))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "hostgpu_call");
	return call(f, params, n);
}

// View reads and writes an array of a library's type as floats.
struct View {
	int type;
	char *p;
	int size() const { return type == FLOAT32 ? 4 : 2; }
	float get(int64_t i) const {
		if (type == FLOAT32) return ((float *)p)[i];
		const uint16_t b = ((uint16_t *)p)[i];
		return type == FLOAT16 ? __half2float(__half{b}) : BITS_FLOAT((uint32_t)b << 16);
	}
	void put(int64_t i, float v) const {
		const uint32_t b = FLOAT_BITS(v);
		if (type == FLOAT32) ((float *)p)[i] = v;
		else if (type == FLOAT16) ((uint16_t *)p)[i] = __float2half(v).bits;
		else ((uint16_t *)p)[i] = v != v ? (uint16_t)(b >> 16 | 0x40) : (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
	}
};

struct Layout { int type; uint64_t rows, cols; int64_t pitch; int batch; int64_t stride; };
struct Desc { int compute, scale, trans_a, trans_b, epilogue; const void *bias; };
struct Preference { uint64_t workspace; };
struct Algorithm { uint64_t data[8]; };
struct Heuristic { Algorithm algo; size_t workspace; int state; float waves; int reserved[4]; };
struct Matmul {
	Desc desc;
	Layout a, b, c, d;
	float alpha, beta;
	const void *pa, *pb, *pc;
	void *pd, *workspace;
	size_t workspace_bytes;
};

float activated(int epilogue, float v) {
	if (epilogue & 2) return v < 0 ? 0 : v;
	if (epilogue & 32) return 0.5f * v * (1 + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));
	return v;
}

void matmul(const void *params) {
	const Matmul &m = *(const Matmul *)params;
	const View a{m.a.type, (char *)m.pa}, b{m.b.type, (char *)m.pb}, c{m.c.type, (char *)m.pc}, d{m.d.type, (char *)m.pd}, bias{m.d.type, (char *)m.desc.bias};
	const uint64_t depth = m.desc.trans_a ? m.a.rows : m.a.cols;
	memset(m.workspace, 0xff, m.workspace_bytes);

	for (int z = 0; z < m.d.batch; z++)
		for (uint64_t j = 0; j < m.d.cols; j++)
			for (uint64_t i = 0; i < m.d.rows; i++) {
				float sum = 0;
				for (uint64_t k = 0; k < depth; k++)
					sum += a.get(z * m.a.stride + (m.desc.trans_a ? k + i * m.a.pitch : i + k * m.a.pitch)) *
						b.get(z * m.b.stride + (m.desc.trans_b ? j + k * m.b.pitch : k + j * m.b.pitch));

				const int64_t at = z * m.d.stride + i + j * m.d.pitch;
				float v = m.alpha * sum;
				if (m.beta != 0) v += m.beta * c.get(at);
				if (m.desc.epilogue & 4) v += bias.get(i);
				d.put(at, activated(m.desc.epilogue, v));
			}
}

struct Tensor { int format, type, n, c, h, w; };
struct Window { int pad_h, pad_w, stride_h, stride_w, dil_h, dil_w, mode, compute, groups, math; };
struct Activation { int mode; };
struct Performance { int algo, status; float time; size_t memory; int determinism, math, reserved[3]; };
struct Convolve {
	Tensor x, w, y;
	Window window;
	int act, bias;
	float other;
	const void *px, *pw, *pz, *pb;
	void *py, *workspace;
	size_t workspace_bytes;
};

int64_t at(const Tensor &t, int n, int c, int y, int x) {
	return t.format ? (((int64_t)n * t.h + y) * t.w + x) * t.c + c : (((int64_t)n * t.c + c) * t.h + y) * t.w + x;
}

int kind(const Tensor &t) { return t.type == DNN_BFLOAT16 ? (int)BFLOAT16 : t.type; }

void convolve(const void *params) {
	const Convolve &o = *(const Convolve *)params;
	const View x{kind(o.x), (char *)o.px}, w{kind(o.w), (char *)o.pw}, y{kind(o.y), (char *)o.py}, z{kind(o.y), (char *)o.pz}, b{kind(o.y), (char *)o.pb};
	const int each = o.y.c / o.window.groups;
	memset(o.workspace, 0xff, o.workspace_bytes);

	for (int n = 0; n < o.y.n; n++)
		for (int k = 0; k < o.y.c; k++)
			for (int i = 0; i < o.y.h; i++)
				for (int j = 0; j < o.y.w; j++) {

					float sum = 0;
					for (int c = 0; c < o.w.c; c++)
						for (int r = 0; r < o.w.h; r++)
							for (int s = 0; s < o.w.w; s++) {
								const int yi = i * o.window.stride_h - o.window.pad_h + r * o.window.dil_h;
								const int xi = j * o.window.stride_w - o.window.pad_w + s * o.window.dil_w;
								if (yi < 0 || yi >= o.x.h || xi < 0 || xi >= o.x.w) continue;
								sum += x.get(at(o.x, n, k / each * o.w.c + c, yi, xi)) * w.get(at(o.w, k, c, r, s));
							}

					const int64_t p = at(o.y, n, k, i, j);
					if (o.bias) sum += b.get(k);
					if (o.other != 0) sum += o.other * z.get(p);
					y.put(p, o.act == 1 && sum < 0 ? 0 : sum);
				}
}

template <class T> int create(void **out) {
	*out = calloc(1, sizeof(T));
	return OK;
}
int destroy(void *p) {
	free(p);
	return OK;
}

size_t workspace_of(int algo) { return algo == 1 ? 4096 : 0; }

int convolution(const float *alpha, void *x, const void *px, void *w, const void *pw, void *window, int algo, void *workspace, size_t bytes,
	const float *other, const void *pz, const void *pb, int act, void *y, void *py) {
	if (*alpha != 1 || bytes < workspace_of(algo) || (pb && act != 1 && algo != 1)) return DNN_BAD_PARAM;
	const Convolve o = {*(Tensor *)x, *(Tensor *)w, *(Tensor *)y, *(Window *)window, act, pb != 0, *other, px, pw, pz, pb, py, workspace, workspace_of(algo)};
	return enqueue(convolve, &o, sizeof o);
}

} // namespace

extern "C" {

size_t cublasLtGetVersion() { return 1; }
int cublasLtCreate(void **h) { return create<int>(h); }
int cublasLtDestroy(void *h) { return destroy(h); }
int cublasLtMatmulDescCreate(void **d, int compute, int scale) {
	create<Desc>(d);
	*(Desc *)*d = {compute, scale, 0, 0, 1, 0};
	return compute == 68 && scale == FLOAT32 ? OK : BLAS_INVALID;
}
int cublasLtMatmulDescSetAttribute(void *p, int which, const void *v, size_t n) {
	Desc *d = (Desc *)p;
	void *to = which == 3 ? (void *)&d->trans_a : which == 4 ? (void *)&d->trans_b : which == 7 ? (void *)&d->epilogue : which == 8 ? (void *)&d->bias : 0;
	if (!to || n != (which == 8 ? 8 : 4)) return BLAS_INVALID;
	memcpy(to, v, n);
	return OK;
}
int cublasLtMatmulDescDestroy(void *d) { return destroy(d); }
int cublasLtMatrixLayoutCreate(void **l, int type, uint64_t rows, uint64_t cols, int64_t pitch) {
	create<Layout>(l);
	*(Layout *)*l = {type, rows, cols, pitch, 1, 0};
	return pitch >= (int64_t)rows ? OK : BLAS_INVALID;
}
int cublasLtMatrixLayoutSetAttribute(void *p, int which, const void *v, size_t n) {
	Layout *l = (Layout *)p;
	if (which == 5 && n == 4) memcpy(&l->batch, v, n);
	else if (which == 6 && n == 8) memcpy(&l->stride, v, n);
	else return BLAS_INVALID;
	return OK;
}
int cublasLtMatrixLayoutDestroy(void *l) { return destroy(l); }
int cublasLtMatmulPreferenceCreate(void **p) { return create<Preference>(p); }
int cublasLtMatmulPreferenceSetAttribute(void *p, int which, const void *v, size_t n) {
	if (which != 1 || n != 8) return BLAS_INVALID;
	memcpy(p, v, n);
	return OK;
}
int cublasLtMatmulPreferenceDestroy(void *p) { return destroy(p); }

int cublasLtMatmulAlgoGetHeuristic(void *, void *desc, void *pa, void *pb, void *, void *pd, void *wish, int max, Heuristic *out, int *n) {
	const Desc &o = *(Desc *)desc;
	const Layout &a = *(Layout *)pa, &b = *(Layout *)pb, &d = *(Layout *)pd;
	const uint64_t m = o.trans_a ? a.cols : a.rows, k = o.trans_a ? a.rows : a.cols, kb = o.trans_b ? b.cols : b.rows, cols = o.trans_b ? b.rows : b.cols;
	if (m != d.rows || cols != d.cols || k != kb || a.batch != d.batch || b.batch != d.batch) return BLAS_INVALID;
	for (*n = 0; *n < max && *n < 2; ++*n) out[*n] = {{{(uint64_t)*n}}, *n == 1 && ((Preference *)wish)->workspace >= 8192 ? 8192ul : 0, OK, 1, {}};
	return OK;
}

int cublasLtMatmul(void *, void *desc, const float *alpha, const void *a, void *la, const void *b, void *lb, const float *beta, const void *c, void *lc, void *d,
	void *ld, const Algorithm *algo, void *workspace, size_t bytes, void *) {
	if (algo->data[0] > 1 || (bytes && !workspace)) return BLAS_INVALID;
	const Matmul m = {*(Desc *)desc, *(Layout *)la, *(Layout *)lb, *(Layout *)lc, *(Layout *)ld, *alpha, *beta, a, b, c, d, workspace, bytes};
	return enqueue(matmul, &m, sizeof m);
}

size_t cudnnGetVersion() { return 1; }
int cudnnCreate(void **h) { return create<int>(h); }
int cudnnDestroy(void *h) { return destroy(h); }
int cudnnSetStream(void *, void *) { return OK; }
int cudnnCreateTensorDescriptor(void **d) { return create<Tensor>(d); }
int cudnnSetTensor4dDescriptor(void *d, int format, int type, int n, int c, int h, int w) {
	*(Tensor *)d = {format, type, n, c, h, w};
	return OK;
}
int cudnnDestroyTensorDescriptor(void *d) { return destroy(d); }
int cudnnCreateFilterDescriptor(void **d) { return create<Tensor>(d); }
int cudnnSetFilter4dDescriptor(void *d, int type, int format, int k, int c, int h, int w) {
	*(Tensor *)d = {format, type, k, c, h, w};
	return OK;
}
int cudnnDestroyFilterDescriptor(void *d) { return destroy(d); }
int cudnnCreateConvolutionDescriptor(void **d) { return create<Window>(d); }
int cudnnSetConvolution2dDescriptor(void *d, int ph, int pw, int sh, int sw, int dh, int dw, int mode, int compute) {
	*(Window *)d = {ph, pw, sh, sw, dh, dw, mode, compute, 1, 0};
	return mode == 1 && compute == FLOAT32 ? OK : DNN_BAD_PARAM;
}
int cudnnSetConvolutionGroupCount(void *d, int n) {
	((Window *)d)->groups = n;
	return OK;
}
int cudnnSetConvolutionMathType(void *d, int math) {
	((Window *)d)->math = math;
	return OK;
}
int cudnnDestroyConvolutionDescriptor(void *d) { return destroy(d); }
int cudnnCreateActivationDescriptor(void **d) { return create<Activation>(d); }
int cudnnSetActivationDescriptor(void *d, int mode, int, double) {
	((Activation *)d)->mode = mode;
	return mode == 1 || mode == 5 ? OK : DNN_BAD_PARAM;
}
int cudnnDestroyActivationDescriptor(void *d) { return destroy(d); }

int cudnnGetConvolutionForwardAlgorithm_v7(void *, void *px, void *pw, void *window, void *py, int max, int *n, Performance *out) {
	const Tensor &x = *(Tensor *)px, &w = *(Tensor *)pw, &y = *(Tensor *)py;
	const Window &o = *(Window *)window;
	const int oh = (x.h + 2 * o.pad_h - (w.h - 1) * o.dil_h - 1) / o.stride_h + 1, ow = (x.w + 2 * o.pad_w - (w.w - 1) * o.dil_w - 1) / o.stride_w + 1;
	if (w.c * o.groups != x.c || w.n != y.c || oh != y.h || ow != y.w) return DNN_BAD_PARAM;
	for (*n = 0; *n < max && *n < 3; ++*n) out[*n] = {*n, *n == 2 ? 9 : OK, 1, workspace_of(*n), 1, o.math, {}};
	return OK;
}
int cudnnGetConvolutionForwardWorkspaceSize(void *, void *, void *, void *, void *, int algo, size_t *n) {
	*n = workspace_of(algo);
	return OK;
}
int cudnnConvolutionForward(void *, const float *alpha, void *x, const void *px, void *w, const void *pw, void *window, int algo, void *workspace,
	size_t bytes, const float *beta, void *y, void *py) {
	const float zero = 0;
	return *beta != 0 ? DNN_BAD_PARAM : convolution(alpha, x, px, w, pw, window, algo, workspace, bytes, &zero, 0, 0, 5, y, py);
}
int cudnnConvolutionBiasActivationForward(void *, const float *alpha, void *x, const void *px, void *w, const void *pw, void *window, int algo,
	void *workspace, size_t bytes, const float *other, void *, const void *pz, void *, const void *pb, void *activation, void *y, void *py) {
	return convolution(alpha, x, px, w, pw, window, algo, workspace, bytes, other, pz, pb, ((Activation *)activation)->mode, y, py);
}

} // extern "C"
